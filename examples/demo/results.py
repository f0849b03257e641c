"""The demo's results as plain data: the rows of its table, and a continuation to show."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rdk_cuda.calibration.methods import FULL, PRUNED
from rdk_cuda.evaluation.acceptance import Bootstrap, Interval, recovered_share
from rdk_cuda.evaluation.rows import Row, evaluation_row

from .decoding import Decoded
from .experiment import Measured

TARGET_ALONE = "target alone"
SHOWN_PROMPT = 48  # tokens of the prompt that are shown before its continuation


def table_rows(
    vocabulary_size: int, measured: Measured, bootstrap: Bootstrap
) -> list[dict[str, Any]]:
    """The rows of the table: plain numbers, None where a figure does not apply."""
    methods, rates = measured.methods, measured.rates
    rows = [
        {
            "method": TARGET_ALONE,
            "keep": None,
            "head_rows": vocabulary_size,
            "dynamic_columns": 0.0,
            "acceptance": None,
            "recovered": None,
            "tuned": None,
            **decoding_figures(measured.alone, measured.alone),
        }
    ]
    baseline = {m.keep: rate for m, rate in zip(methods, rates, strict=True) if m.name == PRUNED}
    contexts = [window.contexts for window in measured.windows]
    for method, rate, run in zip(methods, rates, measured.decoded, strict=True):
        share = None
        if method.name not in (FULL, PRUNED):
            share = recovered_share(bootstrap, rate, baseline[method.keep], rates[0])
        rows.append(
            {
                "method": method.name,
                "keep": method.keep,
                "head_rows": method.drafter.affinity.draft_size,
                "dynamic_columns": method.drafter.mean_dynamic_columns(contexts),
                "acceptance": plain(bootstrap.mean(rate)),
                "recovered": plain(share),
                "tuned": method.tuned,
                **decoding_figures(run, measured.alone),
            }
        )
    return rows


def plotted(results: dict[str, Any]) -> list[Row]:
    """The rows with a drafter as those of an evaluation, which is what plots take."""
    return [
        evaluation_row(
            Interval(**row["acceptance"]),
            row["recovered"] and Interval(**row["recovered"]),
            temperature=results["settings"]["temperature"],
            **{name: row[name] for name in ("method", "keep", "head_rows", "dynamic_columns")},
        )
        for row in results["table"]
        if row["acceptance"] is not None
    ]


def decoding_figures(run: Decoded, alone: Decoded) -> dict[str, Any]:
    """A row's figures from decoding; its speed relative to the target alone is taken by round."""
    counts, seconds = run.statistics, sum(run.seconds)
    ratios = [ours / theirs for ours, theirs in zip(run.speeds, alone.speeds, strict=True)]
    speed = {"value": median(ratios), "low": min(ratios), "high": max(ratios)}
    return {
        "accepted_length": counts.mean_accepted_length,
        "target_passes_per_token": counts.target_passes_per_token,
        "tokens_per_second": counts.tokens / seconds,
        "relative_speed": {**speed, "rounds": len(ratios)},
        "acceptance_by_place": counts.acceptance,
        "tokens": counts.tokens,
        "out_of_vocabulary_tokens": counts.out_of_vocabulary,
        "seconds": seconds,
    }


def plain(interval: Interval | None) -> dict[str, float] | None:
    """An interval as plain data."""
    return None if interval is None else interval._asdict()


def continuation(tokenizer: Any, measured: Measured) -> dict[str, Any]:
    """An output of the last method, and how each of its tokens came about.

    It is the one with the most accepted drafts, among those with one out of vocabulary.
    """
    decoded = measured.decoded[-1]

    def accepted(place: int) -> tuple[bool, int]:
        kinds = decoded.kinds[place]
        pruned = kinds.count("out_of_vocabulary")
        return pruned > 0, kinds.count("accepted") + pruned

    best = max(range(len(decoded.kinds)), key=accepted)
    prompt, tokens = measured.prompts[best], decoded.tokens[best]
    text = tokenizer.decode(prompt.ids[-SHOWN_PROMPT:])
    if len(prompt.ids) > SHOWN_PROMPT:
        text = text.split("\n", 1)[-1]  # from the beginning of a line
    return {
        "method": str(measured.methods[-1]),
        "source": prompt.source,
        "prompt": printable(text),
        "tokens": tokens,
        "pieces": pieces(tokenizer, prompt.ids[-SHOWN_PROMPT:], tokens),
        "kinds": decoded.kinds[best],
    }


def pieces(tokenizer: Any, ids: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The text that each token adds to `ids`; a character belongs to its last token."""
    added = []
    before = tokenizer.decode(ids)
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode([*ids, *tokens[:count]])
        unfinished = text.endswith("\ufffd") and count < len(tokens)
        added.append("" if unfinished else printable(text[len(before) :]))
        before = before if unfinished else text
    return added


def printable(text: str) -> str:
    """The text without characters that would steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
