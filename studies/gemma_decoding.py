"""What drafting costs and brings with Gemma 3 270M, at one sequence and at eight.

`python -m studies.gemma_decoding --device cpu` takes the demo's head, pruned as in `make
demo-gemma` and with its virtual and dynamic tokens. A row is a batch, a temperature, and a draft
length K, 0 for the target alone:

    pass_milliseconds       of the target over K + 1 tokens of each sequence; median, 10 % and 90 %
    draft_milliseconds      of the drafter's K passes, likewise
    tokens_per_second       likewise over `rounds`, all K in turn, after the prompts
    speed_up                over K = 0 in the same round, likewise
    while_all               the same until the first sequence ends: if those that end were replaced
    tokens_a_pass           of a sequence
    run, date, load ...     as in profiling/results.py
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from examples.demo import gemma
from examples.demo.arguments import MODEL_DEFAULTS, Settings
from examples.demo.calibration import calibrate, pruned_to
from examples.demo.corpus import training_files
from examples.demo.decoding import decoders_of, spaced
from examples.demo.text import held_out_prompts, windows_of
from profiling.commands import (
    Parser,
    Progress,
    add_measuring,
    measure_rows,
    page_of,
    run_columns,
    run_command,
)
from profiling.machine import now
from profiling.results import Row
from profiling.tables import figure, table
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Kind
from rdk_cuda.recipes.stages.pruning import RECOMMENDED
from rdk_cuda.recipes.timing import spread

PASSES = 15  # of one kind, after the first


class Watch:
    """When tokens of a batch came, after a first step, in which both models read the prompts."""

    def __init__(self, batch: int, tokens: int) -> None:
        self.counts, self.tokens = [0] * batch, tokens
        self.moments: list[tuple[float, int, bool]] = []  # all tokens so far; all sequences go on

    def __call__(self, sequence: int, tokens: list[int], kinds: list[Kind]) -> None:
        """Of `generate(on_tokens=...)`."""
        self.counts[sequence] += len(kinds)
        goes_on = max(self.counts) < self.tokens
        self.moments.append((time.perf_counter(), sum(self.counts), goes_on))

    def speed(self, *, while_all: bool) -> float:
        """Tokens a second, in all or until the first sequence ends."""
        # A state drafter drafts from the second step on, and reads the prompt there.
        begin, before, _ = self.moments[2 * len(self.counts) - 1]
        ends = (place for place, (*_, goes_on) in enumerate(self.moments) if not goes_on)
        end, count, _ = self.moments[next(ends) if while_all else -1]
        return (count - before) / (end - begin)


def rows(arguments: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """Each batch and temperature, with all draft lengths in turn."""
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    progress.show("loading")
    models = gemma.load_with_head()
    pair, settings = models.pair, Settings(**MODEL_DEFAULTS)
    progress.show("calibrating")
    text = windows_of(pair.tokenizer, training_files(), 3 * settings.positions, settings.length)
    material = calibrate(pair, text, settings, lambda items, _: iter(items))
    pruning = pruned_to(settings.keep[-1], material, settings)
    prompts = held_out_prompts(pair.tokenizer)
    common: Row = {
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "kept": pruning.vocabulary.draft_size,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        **run_columns(parser(), arguments),
    }
    for temperature in (0.0, 1.0):
        method = pruning.method(RECOMMENDED, temperature)
        decoders = dict(decoders_of(models, None, ()))
        decoders |= dict(decoders_of(models, method, arguments.draft_length))
        for batch in arguments.batch:
            progress.show(f"batch {batch}, T = {temperature:g}")
            own = [one.ids for one in spaced(prompts, arguments.rounds * batch)]
            yield from compared(decoders, own, batch, temperature, common)


def compared(
    decoders: dict[int, SpeculativeDecoder],
    prompts: Sequence[list[int]],
    batch: int,
    temperature: float,
    common: Row,
) -> Iterator[Row]:
    """A row for each draft length."""
    speeds: dict[int, list[tuple[float, float]]] = defaultdict(list)
    passes: dict[int, list[float]] = defaultdict(list)
    for turn in range(common["rounds"]):
        share = prompts[turn :: common["rounds"]]
        for length, decoder in decoders.items():
            watch = Watch(batch, common["tokens"])
            done = decoder.generate(
                share,
                max_new_tokens=common["tokens"],
                temperature=temperature,
                seeds=turn,
                on_tokens=watch,
            )
            speeds[length].append((watch.speed(while_all=False), watch.speed(while_all=True)))
            passes[length].append(1 / done.statistics.target_passes_per_token)
    for length, several in speeds.items():
        alone = speeds[0]
        target, draft = pass_times(decoders[length], prompts[:batch], length)
        yield {
            "batch": batch,
            "temperature": temperature,
            "draft_length": length,
            "pass_milliseconds": spread(target),
            "draft_milliseconds": spread(draft),
            "tokens_per_second": spread([whole for whole, _ in several]),
            "speed_up": ratios(several, alone, 0),
            "while_all": ratios(several, alone, 1),
            "tokens_a_pass": sum(passes[length]) / len(passes[length]),
            **{**common, "date": now(), "load": os.getloadavg()[0]},
        }


def ratios(ours: Sequence[Any], alone: Sequence[Any], which: int) -> Any:
    """Over the target alone, round by round."""
    return spread([a[which] / b[which] for a, b in zip(ours, alone, strict=True)])


def pass_times(
    decoder: SpeculativeDecoder, prompts: Sequence[list[int]], length: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of the target's pass over K + 1 tokens of each sequence, and of K drafts."""
    target, drafter, batch = decoder.target, decoder.drafter, len(prompts)
    target.reset(batch)
    states = target.feed(prompts, [1] * batch).states
    read, keep = [len(ids) for ids in prompts], [length + 1] * batch

    def target_pass() -> None:
        target.feed([ids[: length + 1] for ids in prompts], keep)
        target.rollback(read)

    if drafter is None:
        return times(target_pass), [0.0]
    drafter.reset(batch)
    drafter.observe([own[:-1] for own in states])  # type: ignore[attr-defined, union-attr]

    def drafts() -> None:
        for place in range(length):
            new = [[*ids, *ids[:place]] for ids in prompts]
            drafter.feed([ids[drafter.lengths[0] :] for ids in new], [1] * batch)
        drafter.rollback([count - 1 for count in read])

    return times(target_pass), times(drafts)


def times(call: Callable[[], None]) -> list[float]:
    """Of several calls, in milliseconds."""
    taken = []
    for _ in range(PASSES + 1):
        begin = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - begin))
    return taken[1:]


def preamble(row: Row) -> str:
    """What is measured."""
    return (
        f"Gemma 3 270M, V_t 262,144, {row['dtype']}; prompts of 128 tokens of source code, "
        f"{row['tokens']} more of each. Medians of {row['rounds']} rounds with the middle 80 %, "
        f"all K in turn. The drafter is the demo's EAGLE-3 head, pruned to {row['kept']:,} tokens, "
        "with virtual and dynamic ones. *While all run*: until the first sequence ends."
    )


def section(own: Sequence[Row]) -> list[str]:
    """One batch."""
    titles = ("T", "K", "tokens / pass", "pass, ms", "drafts, ms", "tokens / s", "× alone")
    return [f"## Batch {own[0]['batch']}", table([*titles, "while all run"], map(cells, own), "r")]


def cells(row: Row) -> list[str]:
    """In the order of the titles."""
    measured = ("pass_milliseconds", "draft_milliseconds", "tokens_per_second")
    return [
        f"{row['temperature']:g}",
        f"{row['draft_length']}",
        f"{row['tokens_a_pass']:.2f}",
        *("{} [{}, {}]".format(*map(figure, row[name])) for name in measured),
        *("{:.2f} [{:.2f}, {:.2f}]".format(*row[name]) for name in ("speed_up", "while_all")),
    ]


page = partial(page_of, "Decoding with Gemma 3 270M", preamble, "batch", section)


def parser() -> Parser:
    """The command line."""
    summary = (__doc__ or "").splitlines()[0]
    command = Parser(prog="python -m studies.gemma_decoding", description=summary)
    add_measuring(command, "JSON file to append rows to; next to it the same rows as tables")
    add = command.add_argument
    add("--batch", type=natural, nargs="+", default=[1, 8], metavar="B", help="(1 8)")
    add("--draft-length", type=natural, nargs="+", default=[1, 2, 3], metavar="K", help="(1 2 3)")
    add("--tokens", type=natural, default=64, metavar="N", help="of each sequence (%(default)s)")
    add("--rounds", type=natural, default=4, metavar="N", help="(%(default)s)")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and, if asked to, write."""
    return measure_rows(arguments, "gemma_decoding", lambda shown: rows(arguments, shown), page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


if __name__ == "__main__":
    sys.exit(main())
