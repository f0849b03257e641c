"""The decoder's own time: a step without models, next to the bare calls of its operators.

`python -m studies.decoder_time` decodes with models that return the same logits every time, and
makes the calls that a step cannot do without, K of `rdk_cuda.draft` and one of `rdk_cuda.verify`,
on the same logits, in turn. What a step takes beyond those is the decoder's.

With `--drafter DIR` it measures what proposing takes next to the passes of that drafter, of the
demo's target: all of a chain's or a tree's time but the network's, masks included.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo.shipped import SHIPPED
from examples.demo.text import held_out_prompts
from profiling.commands import Parser, run_command
from profiling.machine import describe, now
from profiling.tables import figure, table
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import Output, SpeculativeDecoder
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.pair.loading import load_pair
from rdk_cuda.pair.pairs import StatePair

from .chains_and_trees import Way
from .end_to_end import WithOperators

K = 4


class Constant:
    """A model that says the same everywhere, for as many rows as it is asked for."""

    context, device = math.inf, torch.device("cpu")

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.vocabulary_size = logits, logits.shape[2]

    def reset(self, batch_size: int) -> None:
        """As `CausalModel.reset`."""
        self.lengths = [0] * batch_size

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """As `CausalModel.feed`."""
        self.lengths = [old + len(new) for old, new in zip(self.lengths, tokens, strict=True)]
        return Output(self.logits[:, : max(keep)])

    def rollback(self, lengths: Sequence[int]) -> None:
        """As `CausalModel.rollback`."""
        self.lengths = list(map(min, self.lengths, lengths))


def calls(batch: int, vocabulary: int) -> dict[str, Callable[[], int]]:
    """A step by itself and by the decoder: each returns how many steps it took."""
    noise = torch.Generator().manual_seed(0)
    shared = 3 * torch.randn(vocabulary, generator=noise)
    target, drafter = (
        (shared + 0.3 * torch.randn(K + 1, vocabulary, generator=noise)).repeat(batch, 1, 1)
        for _ in range(2)
    )
    decoder = SpeculativeDecoder(Constant(target), Constant(drafter), draft_length=K)
    seeds, wanted = torch.arange(batch), max(4, 24 // batch)

    def operators() -> int:
        step = WithOperators(decoder.affinity, batch)
        for position in range(wanted):
            step.begin(position)
            for place in range(K):
                step.draft(drafter[:, place]).tolist()
            step.verify(target)[0].tolist()
        return wanted

    def whole() -> int:
        # A sequence near its end drafts less, which is a part of what is timed.
        tokens = wanted * (K + 1)
        _, stats, _ = decoder.generate([[0]] * batch, max_new_tokens=tokens, seeds=seeds)
        return max(1, round(stats.target_passes / batch))

    return {"operators": operators, "decoder": whole}


def measure(batch: int, vocabulary: int, rounds: int) -> dict[str, Any]:
    """Medians of both, in turn, and of their ratio within a round."""
    made = calls(batch, vocabulary)
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(rounds + 1):  # the first does not count
        for name, call in made.items():
            start = time.perf_counter()
            steps = call()
            seconds = (time.perf_counter() - start) / steps
            times[name] += [seconds] if turn else []
    ratios = [b / a for a, b in zip(times["operators"], times["decoder"], strict=True)]
    row: dict[str, Any] = {name: statistics.median(each) for name, each in times.items()}
    return {"batch": batch, "vocabulary": vocabulary, **row, "ratio": statistics.median(ratios)}


def timed(owner: Any, name: str, seconds: list[float]) -> None:
    """From here on the time of each call of a method is noted."""
    called = getattr(owner, name)

    def noting(*given: Any, **options: Any) -> Any:
        start = time.thread_time()
        result = called(*given, **options)
        seconds.append(time.thread_time() - start)
        return result

    setattr(owner, name, noting)


def proposing(directory: Path, temperature: float, prompts: int) -> list[dict[str, Any]]:
    """A drafter's pass, and what a chain and a tree take beyond it for each; medians over steps.

    Of this thread's own time, which a load on the machine changes little.
    """
    models = load_pair(SHIPPED / "target", directory)
    kept, rows = models.kept or Vocabulary.identity(models.vocabulary_size), []
    for way in (Way(K, K), Way(2 * K, K)):
        drafter: Any = models.drafting() if isinstance(models, StatePair) else None
        drafter = drafter or HuggingFaceModel(models.drafter)
        target = HuggingFaceModel(models.target, state_layers=drafter.state_layers)
        proposer: Any = way.proposer(drafter, affinity=Affinity.intersection(kept))
        decoder = SpeculativeDecoder(target, proposer=proposer, method="block")
        reading, masks = list[float](), list[float]()
        for name in ("feed", "feed_tree"):
            timed(drafter, name, reading)
        timed(drafter._cache, "append", masks)
        propose, steps = proposer.propose, list[tuple[float, float]]()

        def step(
            *given: Any,
            reading: list[float] = reading,
            masks: list[float] = masks,
            propose: Any = propose,
            steps: list[tuple[float, float]] = steps,
        ) -> Any:
            reading.clear()
            masks.clear()
            start = time.thread_time()
            result = propose(*given)
            seconds = time.thread_time() - start
            if len(reading) == K and len(masks) == K:  # not the prompt's, nor short ones
                network = sum(reading) - sum(masks)
                steps.append((network / K, (seconds - network) / K))
            return result

        proposer.propose = step
        for prompt in held_out_prompts(models.tokenizer)[:prompts]:
            decoder.generate([prompt.ids], max_new_tokens=48, temperature=temperature, seeds=[1])
        network, own = map(statistics.median, zip(*steps, strict=True))
        rows.append({"way": way.name, "network": network, "own": own})
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    torch.set_num_threads(1)
    if options.drafter is not None:
        parts = proposing(options.drafter, options.temperature, options.rounds)
        lines = [
            [
                row["way"],
                *(figure(1e6 * row[name]) for name in ("network", "own")),
                f"{row['own'] / row['network']:.0%}",
            ]
            for row in parts
        ]
        print(table(("drafts", "a pass, µs", "proposing, µs a pass", "share"), lines, "lr"))
        return
    rows = [measure(batch, options.vocabulary, options.rounds) for batch in options.batch]
    titles = ("batch", "operators, µs", "decoder, µs", "ratio")
    lines = [
        [
            str(row["batch"]),
            *(figure(1e6 * row[name]) for name in ("operators", "decoder")),
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    print(table(titles, lines, "r"))
    if options.output:
        about = {"run": now(), **describe(torch.device("cpu")), "draft_length": K}
        write_json({**about, "rows": rows}, options.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.decoder_time", description=__doc__)
    add = command.add_argument
    add("--batch", type=natural, nargs="+", default=[1, 64], metavar="B", help="(1 64)")
    add("--vocabulary", type=natural, default=128256, metavar="V", help="(%(default)s)")
    add("--rounds", type=natural, default=15, metavar="N", help="(%(default)s)")
    add("--drafter", type=Path, metavar="DIR", help="what proposing with it takes, in place of all")
    add("--temperature", type=float, default=1.0, metavar="T", help="with --drafter (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
