"""What the demo prints is readable in 80 columns and without colour, and safe to print."""

import io
from typing import Any

import pytest
from rich.console import Console

from examples.demo import report
from examples.demo.results import pieces, printable
from rdk_cuda.pair.pairs import ModelPair

INTERVAL = {"value": 1.234, "low": 1.1, "high": 1.4}
BUSY = "Others were at work on this machine (load 9.0): do not trust the times."


def speed(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high, "rounds": 3}


def row(method: str, keep: float | None, **others: Any) -> dict[str, Any]:
    return {
        "method": method,
        "keep": keep,
        "head_rows": 262144,
        "dynamic_columns": 0.0,
        "acceptance": None if keep is None else {"value": 0.5, "low": 0.4, "high": 0.6},
        "recovered": None,
        "tuned": None,
        "accepted_length": 1.5,
        "target_passes_per_token": 0.4,
        "tokens_per_second": 1234.0,
        "relative_speed": speed(1.234, 1.2, 1.3),
        **others,
    }


LOSS = {"value": -25.2, "low": -33, "high": -20}
DYNAMIC = {"dynamic_columns": 12.3, "recovered": INTERVAL}
ROWS = [
    row("target alone", None, tokens_per_second=1000.0, relative_speed=speed(1, 1, 1)),
    row("full drafter", 1.0),
    row("pruned drafter", 0.0625),
    row("first-order RDK", 0.0625, tuned="tau 1e-08", recovered=LOSS),
    row("dynamic tokens", 0.0625, **DYNAMIC),
    row("virtual tokens", 0.0625, tuned="60 of 64", recovered=INTERVAL),
    row("virtual+dynamic", 0.0625, tuned="off", **DYNAMIC),
]


def printed(doubt: str | None = None, *, terminal: bool = False, **continuation: Any) -> str:
    shown = {"method": "virtual tokens at 6.25 %", "source": "a.py", "prompt": "def f():"}
    results = {
        "settings": {"temperature": 1.0},
        "positions": {"held_out": 5376, "documents": 14},
        "table": ROWS,
        "times_doubt": doubt,
        "checks": [{"name": "greedy output", "passed": False, "detail": "2 of 3", "figures": {}}],
        "continuation": {**shown, "pieces": [], "kinds": [], "tokens": [], **continuation},
    }
    file = io.StringIO()
    report.show(Console(file=file, width=80, force_terminal=terminal), results)
    return file.getvalue()


def test_the_table_fits_80_columns_with_nothing_cut_off() -> None:
    text = printed()
    assert max(map(len, text.splitlines())) <= 80
    for found in ("-2520 [-3300, -2000]", "123 [110, 140]", "262144+12 "):
        assert found in text
    for tuned in ("its tau 1e-08", "alone 60 of 64", "with dynamic ones off"):
        assert f"{tuned} (at 6.25 %)" in " ".join(text.split())
    assert "FAILED  greedy output: 2 of 3." in text
    for absent in ("…", "\x1b", "trust"):
        assert absent not in text
    assert BUSY in " ".join(printed(BUSY).split())


def test_tokens_stand_in_colour_or_between_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # one that has colours
    kinds = ["accepted", "out_of_vocabulary", "resampled", "bonus", "bonus"]
    pieces = ["\n    x", " = ", "value", "\n", "  "]
    assert "def f():\n    x ⟦=⟧ «value»\n" in printed(pieces=pieces, kinds=kinds)
    coloured = printed(terminal=True, pieces=pieces, kinds=kinds)
    assert "\x1b[" in coloured
    assert "⟦" not in coloured


def told(value: float, low: float, high: float) -> str:
    """The sentence about time, where one drafter was so much faster than the target alone."""
    drafter = row("full drafter", 1.0, relative_speed=speed(value, low, high))
    return report.time_sentence([ROWS[0], drafter], None)


def test_time_is_told_with_its_spread_and_whether_it_was_gained_lost_or_impossible() -> None:
    spread = "times the target's own speed ({} to {} in 3 rounds, the methods in turn)"
    verdicts = {
        (1.23, 1.2, 1.3): ".",
        (1.02, 0.9, 1.1): ": neither gain nor loss is certain.",
        (0.8, 0.7, 0.9): ": no gain with these models on this machine.",
        (2.4, 2.3, 2.5): ".",  # nearly all of the 2.5 tokens a pass, by a very good drafter
    }
    for (value, low, high), verdict in verdicts.items():
        about = f"Together that is {value:.2f} {spread.format(f'{low:.2f}', f'{high:.2f}')}"
        assert told(value, low, high).endswith(f"{about}{verdict}")
    saved = "saves 60% of the target's passes, but each, with its drafts, takes 2.0 times"
    assert saved in told(1.23, 1.2, 1.3)
    # A pass of 2.5 tokens was measured to take a tenth of the time of one of a single token.
    impossible = told(24.57, 20.0, 30.0)
    assert "24.57" not in impossible
    assert "took 0.10 times as long as one over a single token, which cannot be" in impossible
    assert "quiet machine" in impossible
    assert "Together" not in told(2.9, 2.8, 3.0)


def test_pieces_join_to_the_text_even_where_a_character_has_several_tokens(tiny: ModelPair) -> None:
    tokenizer = tiny.tokenizer
    text = "x = 'naïve ∑ 😀'  # done"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > len("x = ")
    parts = pieces(tokenizer, ids[:2], ids[2:])
    assert tokenizer.decode(ids[:2]) + "".join(parts) == text
    assert len(parts) == len(ids) - 2


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    assert printable("a\x1b[2Jb\rc\td\n") == "a\ufffd[2Jb\ufffdc\td\n"
