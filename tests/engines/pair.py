"""The demo's two models as an engine can load them, and drafters that are calibrated for them.

vLLM's attention on a CPU takes heads of 32 and more, and the demo's drafter has heads of 16. So its
heads are padded with zeros. The result is the same function: the scores are divided by `sqrt(32)`
in place of `sqrt(16)`, so queries are multiplied by `sqrt(2)`, and element i of a half is moved to
2 i, where the rotary embedding of twice the width has its frequency.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from examples.demo.shipped import SHIPPED

__all__ = ["EAGLE3", "TARGET", "padded_drafter"]

TARGET, EAGLE3 = SHIPPED / "target", SHIPPED / "eagle3"
_HEAD = 16


def padded_drafter(directory: Path) -> Path:
    """The demo's drafter with heads of 32, and the target's tokenizer, which it shares."""
    directory.mkdir(parents=True)
    config = json.loads((SHIPPED / "drafter" / "config.json").read_text(encoding="utf-8"))
    config |= {"head_dim": 2 * _HEAD, "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    weights = load_file(SHIPPED / "drafter" / "model.safetensors")
    padded = {name: _padded(name, weight.float()) for name, weight in weights.items()}
    save_file(padded, directory / "model.safetensors", {"format": "pt"})
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, directory / name)
    return directory


def _padded(name: str, weight: Tensor) -> Tensor:
    if name.endswith("o_proj.weight"):
        return _spread(weight.T).T.contiguous()
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return _spread(weight) * (2**0.5 if name.endswith("q_proj.weight") else 1)
    return weight


def _spread(rows: Tensor) -> Tensor:
    """Element i of each half of a head to place 2 i of a half twice as wide."""
    heads = rows.unflatten(0, (-1, 2, _HEAD // 2))
    wide = torch.zeros(heads.shape[0], 2, _HEAD, rows.shape[1])
    wide[:, :, ::2] = heads
    return wide.flatten(0, 2)
