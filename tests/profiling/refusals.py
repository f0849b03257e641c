"""What a command says of options that cannot work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def refusal(
    main: Callable[[Sequence[str]], int],
    program: str,
    capsys: pytest.CaptureFixture[str],
    argv: Sequence[object],
) -> str:
    """The one line on the standard error of a call that has to end with status 2."""
    code: object
    try:
        code = main([str(argument) for argument in argv])
    except SystemExit as exit:  # argparse's own refusals
        code = exit.code
    captured = capsys.readouterr()
    assert code == 2, captured
    (line,) = captured.err.strip().splitlines()
    assert line.startswith(f"{program}: ")
    assert captured.out == ""
    return str(line)
