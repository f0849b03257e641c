"""The header that CPU operators and CUDA kernels share gives the published Philox vectors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Random123, examples/kat_vectors, philox4x32 with 10 rounds: counter and key, words.
PUBLISHED = {
    "00000000 00000000 00000000 00000000 00000000 00000000": "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff": "408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0": "d16cfe09 94fdcceb 5001e420 24126ea1",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("philox") / "philox_vectors"
    source = Path(__file__).with_name("philox_vectors.cpp")
    subprocess.run(["c++", "-std=c++17", "-I", ROOT / "csrc", source, "-o", path], check=True)
    return path


@pytest.mark.parametrize(("counter_and_key", "words"), PUBLISHED.items())
def test_published_vectors(program: Path, counter_and_key: str, words: str) -> None:
    result = subprocess.run(
        [program, *counter_and_key.split()], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == words
