"""What the demo prints is readable in 80 columns and without colour, and safe to print."""

import io
from typing import Any

import pytest
from rich.console import Console

from examples.demo import report
from examples.demo.live import pieces, printable
from rdk_cuda.recipes.inputs.pairs import ModelPair

INTERVAL = {"value": 1.234, "low": 1.1, "high": 1.4}
BUSY = "Others were at work on this machine (load 9.0): do not trust the times."


def accepted(method: str, keep: float, **others: Any) -> dict[str, Any]:
    return {
        "method": method,
        "keep": keep,
        "head_rows": 262144,
        "dynamic_columns": 0.0,
        "acceptance": {"value": 0.5, "low": 0.4, "high": 0.6},
        "recovered": None,
        "tuned": "",
        **others,
    }


def timed(way: str, value: float, low: float, high: float, **others: Any) -> dict[str, Any]:
    return {
        "way": way,
        "temperature": 1.0,
        "batch": 1,
        "relative_speed": {"value": value, "low": low, "high": high},
        "tokens_per_second": 1000.0 * value,
        "target_passes_per_token": 1.0 if way == "target alone" else 0.4,
        "tokens": 1000,
        "seconds": 1 / value,
        "model_seconds": 0.9 / value,
        "out_of_vocabulary_tokens": 0,
        "draft_length": None,
        "chosen": False,
        **others,
    }


LOSS = {"value": -25.2, "low": -33, "high": -20}
ACCEPTED = [
    accepted("full drafter", 1.0),
    accepted("pruned drafter", 0.0625),
    accepted("first-order RDK", 0.0625, recovered=LOSS),
    accepted("virtual+dynamic", 0.0625, dynamic_columns=12.3, recovered=INTERVAL),
]
ALONE = timed("target alone", 1, 1, 1)
GENERATE = timed("Transformers: generate", 0.75, 0.7, 0.8, target_passes_per_token=None)
OURS = timed("virtual and dynamic tokens", 1.5, 1.4, 1.6, draft_length=4, chosen=True)
TIMED = [ALONE, GENERATE, OURS]


def printed(doubt: str | None = None, *, terminal: bool = False, **continuation: Any) -> str:
    shown = {"method": "virtual tokens at 6.25 %", "source": "a.py", "prompt": "def f():"}
    empty: dict[str, Any] = {"pieces": [], "kinds": [], "tokens": [], "speeds": (100.0, 150.0)}
    results = {
        "settings": {"temperature": 1.0},
        "positions": {"held_out": 5376, "documents": 14},
        "acceptance": ACCEPTED,
        "speed": [*({**row, "temperature": 0.0} for row in TIMED), *TIMED],
        "times_doubt": doubt,
        "checks": [{"name": "greedy output", "passed": False, "detail": "2 of 3", "figures": {}}],
        "continuation": {**shown, **empty, **continuation},
    }
    file = io.StringIO()
    report.show(Console(file=file, width=80, force_terminal=terminal), results)
    return file.getvalue()


def test_the_tables_fit_80_columns_with_nothing_cut_off() -> None:
    text = printed()
    lines = text.splitlines()
    assert max(len(line) for line in lines if "tokens/s here" not in line) <= 80
    shown = ("-2520 [-3300, -2000]", "123 [110, 140]", "262144+12 ", "1.50 [1.40, 1.60]")
    for found in (*shown, "→ virtual and dynamic tokens  4    0.40"):
        assert found in text
    assert "FAILED  greedy output: 2 of 3." in text
    for absent in ("…", "\x1b", "trust"):
        assert absent not in text
    assert BUSY in " ".join(printed(BUSY).split())


PRUNED = timed("pruned to 1,024 rows", 1.6, 1.5, 1.7, target_passes_per_token=0.41)


def said(*drafted: dict[str, Any]) -> str:
    return " ".join(report.time_sentences([ALONE, GENERATE, *drafted], None))


def test_the_last_screen_says_what_a_step_takes_and_what_keeps_a_way_from_being_fastest() -> None:
    own = {**OURS, "chosen": False, "out_of_vocabulary_tokens": 7}
    text = said({**PRUNED, "chosen": True}, own)
    assert "a step of virtual and dynamic tokens takes 11 % beyond the models' passes" in text
    assert "Pruned to 1,024 rows is faster than virtual and dynamic tokens there" in text
    assert "-2 % of its passes" not in text
    assert "2 % fewer passes of the target" in text
    assert "only 7 of 1000 tokens are drafts that the pruned head cannot propose" in text
    assert "a step takes 9 % more time, 8 points of it in the models' passes" in text
    assert "is faster" not in said({**PRUNED, "tokens_per_second": 1.0}, own)
    on_gpu = said(PRUNED, {**own, "model_seconds": None})
    assert "models' passes" not in on_gpu
    assert "a step takes 9 % more time." in on_gpu


def test_tokens_stand_in_colour_or_between_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # one that has colours
    kinds = ["accepted", "out_of_vocabulary", "resampled", "bonus", "bonus"]
    pieces = ["\n    x", " = ", "value", "\n", "  "]
    assert "def f():\n    x ⟦=⟧ «value»\n" in printed(pieces=pieces, kinds=kinds)
    coloured = printed(terminal=True, pieces=pieces, kinds=kinds)
    assert "\x1b[" in coloured
    assert "⟦" not in coloured


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
