"""`python -m rdk_cuda calibrate` on tiny models and a few small files."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from rdk_cuda.__main__ import main
from rdk_cuda.calibration import Read, Reading, Recording
from rdk_cuda.recipes import resume

Pair = tuple[Path, Path]

WORDS = ("def", "class", "return", "import", "self", "value", "for", "in", "range", "if", "print")
SMALL = (
    *("--keep", "0.75", "--virtual", "8", "--dynamic", "12", "--window", "16"),
    *("--positions", "600"),
)


def write_texts(folder: Path, count: int = 5, words: int = 150) -> list[Path]:
    """Files of random words, of about three tokens each."""
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number}.txt" for number in range(count)]
    for number, file in enumerate(files):
        chosen = random.Random(number).choices(WORDS, k=words)
        file.write_text(" ".join(chosen), encoding="utf-8")
    return files


def command(models: Pair, text: list[Path], output: Path, *options: object) -> list[str]:
    """What follows `python -m rdk_cuda`."""
    chosen = ("--target", models[0], "--drafter", models[1], "--text", *text, "--out", output)
    small = SMALL[2:] if "--kept" in options else SMALL
    return ["calibrate", *map(str, (*chosen, *small, *options))]


def in_one_thread(argv: list[str]) -> None:
    """Runs a command for a fixture of many tests, which do not hear of it: the models are tiny."""
    threads, said = torch.get_num_threads(), io.StringIO()
    torch.set_num_threads(1)
    try:
        with redirect_stdout(said), redirect_stderr(said):
            assert main(argv) == 0, said.getvalue()
    finally:
        torch.set_num_threads(threads)


def settings_of(directory: Path) -> dict[str, Any]:
    """What `calibration.json` says."""
    settings: dict[str, Any] = json.loads((directory / "calibration.json").read_text())["settings"]
    return settings


def digests(directory: Path) -> dict[str, str]:
    """Of all files."""
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def sources(files: list[Path]) -> list[dict[str, str]]:
    """How results name the files that were read."""
    return [
        {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in files
    ]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows each reading of the calibration text has; the list grows."""
    counted: list[int] = []
    record = resume.record

    def counting(read: Read, *given: Any, **options: Any) -> Recording:
        def count(ids: torch.Tensor) -> Reading:
            counted.append(len(ids))
            return read(ids)

        return record(count, *given, **options)

    monkeypatch.setattr(resume, "record", counting)
    return counted


def refusal(
    capsys: pytest.CaptureFixture[str],
    argv: Sequence[str],
    main: Callable[[Sequence[str]], int] = main,
    name: str = "rdk_cuda",
) -> str:
    """The one line that bad input is answered with, after those that tell the progress."""
    code: object
    try:
        code = main(argv)
    except SystemExit as exit:  # argparse's own refusals
        code = exit.code
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.endswith(" ...")]
    assert code == 2, captured
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"python -m {name}"), lines
    assert "Traceback" not in captured.out + captured.err
    return lines[0]
