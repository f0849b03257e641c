"""What the demo prints is readable in 80 columns and without colour, and safe to print."""

import io
from typing import Any

from rich.console import Console

from examples.demo import report
from examples.demo.results import pieces, printable
from rdk_cuda.cli.models import Models

INTERVAL = {"value": 1.234, "low": 1.1, "high": 1.4}
LOSS = {"value": -25.2, "low": -33, "high": -20}
DECODED = {"accepted_length": 1.5, "target_passes_per_token": 0.4, "tokens_per_second": 1234.0}
BUSY = "Others were at work on this machine (load 9.0): do not trust the times."


def speed(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high, "rounds": 3}


def row(method: str, keep: float | None, **others: Any) -> dict[str, Any]:
    acceptance = None if keep is None else {"value": 0.5, "low": 0.4, "high": 0.6}
    empty = {"head_rows": 262144, "acceptance": acceptance, "recovered": None, "tuned": None}
    return {
        "method": method,
        "keep": keep,
        "dynamic_columns": 0.0,
        **empty,
        **DECODED,
        "relative_speed": speed(1.234, 1.2, 1.3),
        **others,
    }


ROWS = [
    row("target alone", None, tokens_per_second=1000.0, relative_speed=speed(1, 1, 1)),
    row("full drafter", 1.0),
    row("pruned drafter", 0.0625),
    row(
        "first-order RDK",
        0.0625,
        tuned="tau 1e-08",
        recovered={"value": -25.2, "low": -33, "high": -20},
    ),
    row("dynamic tokens", 0.0625, dynamic_columns=12.3, recovered=INTERVAL),
    row("virtual tokens", 0.0625, tuned="60 of 64", recovered=INTERVAL),
    row(
        "virtual+dynamic",
        0.0625,
        tuned="off",
        dynamic_columns=12.3,
        recovered=INTERVAL,
    ),
]


def printed(results: dict[str, Any], **options: Any) -> str:
    file = io.StringIO()
    report.show(Console(file=file, width=80, **options), results)
    return file.getvalue()


def results(**continuation: Any) -> dict[str, Any]:
    shown = {"method": "virtual tokens at 6.25 %", "source": "a.py", "prompt": "def f():"}
    return {
        "settings": {"temperature": 1.0},
        "positions": {"held_out": 5376, "documents": 14},
        "table": ROWS,
        "times_doubt": None,
        "checks": [{"name": "greedy output", "passed": False, "detail": "2 of 3", "figures": {}}],
        "continuation": {**shown, "pieces": [], "kinds": [], "tokens": [], **continuation},
    }


def test_the_table_fits_80_columns_with_nothing_cut_off() -> None:
    text = printed(results())
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "-2520 [-3300, -2000]" in text
    assert "123 [110, 140]" in text
    assert "262144+12 " in text
    for tuned in (
        "its tau 1e-08",
        "alone 60 of 64",
        "beside dynamic ones off",
    ):
        assert f"{tuned} (at 6.25 %)" in " ".join(text.split())
    assert "FAILED  greedy output: 2 of 3." in text
    assert "\x1b" not in text


def test_without_colour_tokens_stand_between_brackets() -> None:
    kinds = ["accepted", "out_of_vocabulary", "resampled", "bonus", "bonus"]
    text = printed(results(pieces=["\n    x", " = ", "value", "\n", "  "], kinds=kinds))
    assert "def f():\n    x ⟦=⟧ «value»\n" in text


def test_with_colour_there_are_none() -> None:
    text = printed(
        results(pieces=["x", "y"], kinds=["out_of_vocabulary", "bonus"]), force_terminal=True
    )
    assert "\x1b[" in text
    assert "⟦" not in text


def told(value: float, low: float, high: float, passes: float = 0.4) -> str:
    """The sentence about time, where one drafter was so much faster than the target alone."""
    drafter = row("full drafter", 1.0, relative_speed=speed(value, low, high))
    drafter["target_passes_per_token"] = passes
    drafter["tokens_per_second"] = value * ROWS[0]["tokens_per_second"]
    return report.time_sentence([ROWS[0], drafter], None)


def test_time_is_told_with_its_spread_and_whether_it_was_gained_or_lost() -> None:
    gain, unsure, loss = told(1.23, 1.2, 1.3), told(1.02, 0.9, 1.1), told(0.8, 0.7, 0.9)
    spread = "times the target's own speed ({} in 3 rounds, the methods in turn)"
    assert gain.endswith(f"Together that is 1.23 {spread.format('1.20 to 1.30')}.")
    assert unsure.endswith(f"{spread.format('0.90 to 1.10')}: neither gain nor loss is certain.")
    assert loss.endswith(
        f"{spread.format('0.70 to 0.90')}: no gain with these models on this machine."
    )
    assert "saves 60% of the target's passes, but each, with its drafts, takes 2.0 times" in gain


def test_a_speed_up_that_cannot_be_is_not_told() -> None:
    """A pass of 2.5 tokens was measured to take a tenth of the time of one of a single token."""
    impossible = told(24.57, 20.0, 30.0)
    assert "24.57" not in impossible
    assert "took 0.10 times as long as one over a single token, which cannot be" in impossible
    assert "quiet machine" in impossible
    # 2.5 tokens a pass cannot be more than 2.5 times as fast; 2.4 times is a very good drafter.
    assert "Together" not in told(2.9, 2.8, 3.0)
    assert "Together that is 2.40" in told(2.4, 2.3, 2.5)


def test_times_taken_beside_others_are_not_to_be_trusted() -> None:
    busy = {**results(), "times_doubt": BUSY}
    assert BUSY in " ".join(printed(busy).split())
    assert "trust" not in printed(results())


def test_pieces_join_to_the_text_even_where_a_character_has_several_tokens(tiny: Models) -> None:
    tokenizer = tiny.tokenizer
    text = "x = 'naïve ∑ 😀'  # done"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > len("x = ")
    parts = pieces(tokenizer, ids[:2], ids[2:])
    assert tokenizer.decode(ids[:2]) + "".join(parts) == text
    assert len(parts) == len(ids) - 2


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    assert printable("a\x1b[2Jb\rc\td\n") == "a\ufffd[2Jb\ufffdc\td\n"
