"""`python -m rdk_cuda calibrate` on tiny models and a few small files."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from rdk_cuda.__main__ import main

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


def command(
    models: tuple[Path, Path], text: list[Path], output: Path, *options: object
) -> list[str]:
    """What stands behind `python -m rdk_cuda`."""
    chosen = ("--target", models[0], "--drafter", models[1], "--text", *text, "--out", output)
    return ["calibrate", *map(str, (*chosen, *SMALL, *options))]


def digests(directory: Path) -> dict[str, str]:
    """Of all files."""
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def refusal(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
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
    assert lines[0].startswith("python -m rdk_cuda"), lines
    assert "Traceback" not in captured.out + captured.err
    return lines[0]
