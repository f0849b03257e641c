"""Drafters for the demo's target, in directories that `python -m rdk_cuda calibrate` writes.

    python -m tests.engines.drafters DIRECTORY

writes `model`, the drafter itself, and `KIND-SHARE` for each kind and share of its head that is
kept; and `KIND-eagle3` for the EAGLE-3 drafter that has 2,048 tokens of its own. The command writes
`virtual-dynamic`; the other kinds are that without some of its parts.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from examples.demo.corpus import calibration_files, held_out_files
from rdk_cuda import Affinity
from rdk_cuda.__main__ import main
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.huggingface import load_drafter
from rdk_cuda.integrations.huggingface.saved_drafter import (
    MODEL,
    PRUNED,
    SETTINGS,
    load_pruned,
)
from rdk_cuda.integrations.huggingface.text_drafter import save_text_drafter

from .pair import EAGLE3, TARGET, whole_drafter

SHARES = ("25", "6.25")
KINDS = ("pruned", "virtual", "virtual-dynamic")


def calibrated_drafters(directory: Path) -> Path:
    """Make all of them where they are not there yet; returns the directory."""
    model = directory / "model"
    if not model.is_dir():
        whole_drafter(model)
    if not (directory / "calibrated").is_dir():
        keep = ["--keep", *(f"{float(share) / 100:g}" for share in SHARES)]
        _calibrate(model, directory / "calibrated", *keep, "--positions", "8192")
    own = directory / "virtual-dynamic-eagle3"
    if not own.is_dir():
        _calibrate(EAGLE3, own, "--positions", "4096", "--draft-length", "4")
    if not (without := directory / "virtual-eagle3").is_dir():
        without.mkdir()
        replace(load_pruned(own)[0], dynamic_tokens=None).save(without / PRUNED)
        shutil.copy(own / SETTINGS, without / SETTINGS)
        (without / MODEL).symlink_to((own / MODEL).resolve())
    for share in SHARES:
        source = directory / "calibrated" / f"keep-{float(share) / 100:g}-temperature-1"
        write_kinds(source, model, directory, share)
    return directory


def with_another_tokenizer(model: Path, directory: Path) -> Path:
    """The drafter with other ids and pieces: half of its merges, and tokens that the target lacks.

    It drafts those like the tokens that they begin with, which the target is to get for them.
    """
    said = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    own = said["model"]
    own["merges"] = own["merges"][: len(own["merges"]) // 2]
    made = {"".join(pair) for pair in own["merges"]}
    special = {token["content"] for token in said["added_tokens"]}
    kept = [name for name in own["vocab"] if len(name) == 1 or name in made | special]
    kept.sort(key=own["vocab"].get, reverse=True)
    rows = [own["vocab"][name] for name in kept]
    lacking = {f"{name}()": id for name, id in zip(kept, rows, strict=True) if id % 8 == 0}
    lacking = {name: id for name, id in lacking.items() if name not in own["vocab"]}
    kept, rows = [*kept, *lacking], [*rows, *lacking.values()]
    own["vocab"] = {name: id for id, name in enumerate(kept)}
    for token in said["added_tokens"]:
        token["id"] = own["vocab"][token["content"]]
    end = said["added_tokens"][0]
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(said)), eos_token=end["content"]
    )
    small = AutoModelForCausalLM.from_pretrained(model)
    weights = small.get_input_embeddings().weight.detach()[torch.tensor(rows)]
    small.resize_token_embeddings(len(kept))
    small.get_input_embeddings().weight.data.copy_(weights)
    small.config.eos_token_id = small.config.bos_token_id = end["id"]
    small.generation_config.eos_token_id = small.config.pad_token_id = end["id"]
    ours = AutoTokenizer.from_pretrained(TARGET)
    size = AutoConfig.from_pretrained(TARGET).vocab_size
    affinity = Affinity.between(theirs, ours, draft_size=len(kept), target_size=size)
    save_text_drafter(directory, small, theirs, ours, affinity, {})
    return directory


def write_kinds(source: Path, model: Path, directory: Path, share: str) -> None:
    """`KIND-SHARE`, where it is not there yet, from what the command wrote for the model."""
    full, calibrated, _ = load_drafter(source)
    kinds = (
        PrunedDrafter.plain((full.get_output_embeddings().weight, None), calibrated.vocabulary),
        replace(calibrated, dynamic_tokens=None),
        calibrated,
    )
    for kind, drafter in zip(KINDS, kinds, strict=True):
        own = directory / f"{kind}-{share}"
        if not own.is_dir():
            own.mkdir()
            drafter.save(own / PRUNED)
            shutil.copy(source / SETTINGS, own / SETTINGS)
            (own / MODEL).symlink_to(model.resolve())


def _calibrate(model: Path, output: Path, *own: str) -> None:
    text, held_out = calibration_files(), held_out_files()[:3]
    options = [*own, "--virtual", "64", "--dynamic", "32", "--temperature", "1"]
    calibrate(TARGET, model, output, text, held_out, *options)


def calibrate(
    target: Path,
    model: Path,
    output: Path,
    text: Sequence[Path],
    held_out: Sequence[Path],
    *options: str,
) -> None:
    """The command; an error if it has one."""
    files = ["--text", *map(str, text), "--held-out", *map(str, held_out)]
    models = ["--target", str(target), "--drafter", str(model), "--out", str(output)]
    code = main(["calibrate", *models, *files, *options])
    if code:
        raise RuntimeError(f"calibrate returned {code}")


if __name__ == "__main__":
    print(calibrated_drafters(Path(sys.argv[1])))
