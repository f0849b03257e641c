"""Drafters for the demo's target, in directories that `python -m rdk_cuda calibrate` writes.

    python -m tests.engines.drafters DIRECTORY

writes `model`, the drafter itself, and `KIND-SHARE` for each kind and share of its head that is
kept; and `KIND-eagle3` for the EAGLE-3 drafter that has 2,048 tokens of its own. The command writes
`virtual-dynamic`; the other kinds are that without some of its parts.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from examples.demo.corpus import CALIBRATION_STRIDE, HELD_OUT, standard_library, training_files
from rdk_cuda.__main__ import main
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.huggingface import load_drafter
from rdk_cuda.integrations.huggingface.saved_drafter import (
    MODEL,
    PRUNED,
    SETTINGS,
    load_pruned,
)

from .pair import EAGLE3, TARGET, whole_drafter

__all__ = ["KINDS", "SHARES", "calibrate", "calibrated_drafters", "write_kinds"]

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
    text = training_files()[::CALIBRATION_STRIDE]
    held_out = [standard_library() / name for name in HELD_OUT[:3]]
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
