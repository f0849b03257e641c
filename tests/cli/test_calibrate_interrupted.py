"""A calibration that was interrupted leaves no half of anything, and goes on later."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from rdk_cuda.__main__ import main

from .calibrating import Pair, command, digests, write_texts
from .conftest import Desk


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_texts(tmp_path_factory.mktemp("text"), count=20, words=100)


GOES_ON = re.compile(
    r"Interrupted\. .*/out\.recording\.tmp \(.* [kM]B\) has what was read; "
    r"the same command goes on from it\."
)


def test_an_interruption_while_writing_keeps_what_was_read_for_the_same_arguments_only(
    desk: Desk, pair: Pair, files: list[Path]
) -> None:
    """Nothing is half written; other arguments are told what differs, and which file to delete."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    desk.patch.setattr("rdk_cuda.drafter.PrunedDrafter.save", interrupted)
    output, state = desk.out, desk.folder / "out.recording.tmp"
    argv = command(pair, files, output)
    before = set(desk.folder.iterdir())
    assert main(argv) == 130
    assert GOES_ON.fullmatch(desk.capsys.readouterr().err.splitlines()[-1])
    assert set(desk.folder.iterdir()) == before | {state}
    content = digests(state)

    def refused(argv: list[str]) -> str:
        answer = desk.refused(argv)
        assert f"{state}: " in answer
        assert "move or delete it to begin anew" in answer
        assert digests(state) == content
        assert not output.exists()
        return answer

    answer = refused([*argv, "--seed", "3"])
    assert "is of another run: --seed was 0 and is 3. Give the same to go on, or" in answer
    copy = shutil.copytree(pair[1], desk.folder / "copy")
    assert "the pair, or how it reads (--target, --drafter, " in refused(
        command((pair[0], copy), files, output)
    )
    os.utime(pair[1] / "model.safetensors")  # as if it had been trained on
    assert "the pair, or how it reads (--target, --drafter, " in refused(argv)
