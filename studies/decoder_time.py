"""The decoder's own time: a step without models, next to the bare calls of its operators.

`python -m studies.decoder_time` decodes with models that return the same logits every time, and
makes the calls that a step cannot do without, K of `rdk_cuda.draft` and one of `rdk_cuda.verify`,
and the models', on the same logits, in turn. The rest of a step's time is the decoder's. With
`--vocabulary 64` the operators take the least. The least of many rounds is next to the median,
since it changes less with what else runs.

With `--sources` it measures what sources of dynamic tokens take for a draft: called with whole
sequences, and with what is new in them.

With `--drafter DIR` it measures what proposing takes next to the passes of that drafter, of the
demo's target: all of a chain's or a tree's time but the network's, masks included.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from examples.demo.shipped import SHIPPED
from examples.demo.text import held_out_prompts
from profiling.commands import Parser, run_command, write_found
from profiling.tables import figure, table
from rdk_cuda import Affinity, StepRows, Vocabulary
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import Output, SpeculativeDecoder
from rdk_cuda.dynamic_tokens import Followed, recent_and_successors
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.inputs.loading import load_pair
from rdk_cuda.recipes.inputs.pairs import StatePair

from .chains_and_trees import Way

K = 4


class Constant:
    """A model that says the same everywhere: logits `[batch, places, V]`."""

    context, device = math.inf, torch.device("cpu")

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.vocabulary_size = logits, logits.shape[2]

    def reset(self, batch_size: int) -> None:
        """As `CausalModel.reset`."""
        self.lengths = [0] * batch_size

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """As `CausalModel.feed`."""
        self.lengths = [old + len(new) for old, new in zip(self.lengths, tokens, strict=True)]
        return Output(self.logits[:, : max(keep)])  # an `expand` would take the operators' time

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
    seeds, wanted, ones = torch.arange(batch), max(4, 24 // batch), torch.ones(batch)
    models, rows = (Constant(target), Constant(drafter)), StepRows(decoder.affinity, batch, K)
    read = {count: ([[1] * count] * batch, [count] * batch) for count in (1, K + 1)}

    def operators() -> int:
        for model in models:
            model.reset(batch)
        for position in range(wanted):
            link: dict[str, Any] = {"seeds": seeds, "positions": torch.full((batch,), position)}
            link |= {"rows": rows, "temperature": ones}
            drafts: list[rdk_cuda.Draft] = []
            for _ in range(K):
                models[1].feed(*read[1])
                drafts.append(rdk_cuda.draft(drafter[:, 0], decoder.affinity, **link))
                drafts[-1].tokens.tolist()
                link = {"after": drafts[-1]}
            models[0].feed(*read[K + 1])
            tokens, accepted, _ = rdk_cuda.verify(target, drafts, decoder.affinity, ones)
            tokens.tolist()
            accepted.tolist()
            for model in models:
                model.rollback(read[1][1])
        return wanted

    def whole() -> int:
        # A sequence near its end drafts less, which is a part of what is timed.
        tokens = wanted * (K + 1)
        _, stats, _ = decoder.generate([[0]] * batch, max_new_tokens=tokens, seeds=seeds)
        return max(1, round(stats.target_passes / batch))

    return {"operators": operators, "decoder": whole}


def measure(batch: int, vocabulary: int, rounds: int) -> dict[str, Any]:
    """Medians of both, in turn, and of their ratio within a round; the least of the difference."""
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
    row |= {"ratio": statistics.median(ratios)}
    row |= {"own": min(times["decoder"]) - min(times["operators"])}
    return {"batch": batch, "vocabulary": vocabulary, **row}


def asking(batch: int, rounds: int) -> list[dict[str, Any]]:
    """Time a source for a draft, with all tokens and with new ones; the least and medians.

    Of a vocabulary whose more frequent quarter is kept; 8% of the text are other tokens.
    """
    size, kept, length, rng = 32768, 8192, 300, random.Random(0)
    vocabulary = rdk_cuda.Vocabulary(torch.arange(kept), size)

    def text(count: int) -> list[int]:
        names = rng.sample(range(kept, size), 40)  # those of a text come again
        return [
            rng.choice(names) if rng.random() < 0.08 else int(kept ** rng.random()) - 1
            for _ in range(count)
        ]

    counts = rdk_cuda.SuccessorCounts(size)
    for _ in range(100):
        counts.add(text(5000))
    table = rdk_cuda.SuccessorTable.from_counts(counts, vocabulary)
    texts, rows = [text(length + 3 * rounds + 9) for _ in range(batch)], []
    # Four drafts: behind two new tokens, and each behind the one before; two of them are accepted.
    spans = [
        (length + 3 * turn + start, length + 3 * turn + end)
        for turn in range(rounds)
        for start, end in ((0, 2), (2, 3), (3, 4), (4, 5))
    ]
    sources: dict[str, Any] = {
        "RecentTokens": rdk_cuda.RecentTokens(vocabulary),
        "SuccessorTable": table,
        "CombinedTokens of both": recent_and_successors(vocabulary, table),
    }
    for name, source in sources.items():
        followed = Followed(source, batch)
        followed.read([0] * batch, [own[:length] for own in texts])
        times: dict[str, list[float]] = {"all": [], "new": []}
        named = list[Tensor]()
        for start, end in spans:
            new = [own[start:end] for own in texts]
            begin = time.perf_counter()
            followed.read([start] * batch, new)
            named.append(followed())
            times["new"].append(time.perf_counter() - begin)
        for found, (_, end) in zip(named, spans, strict=True):
            contexts = [own[:end] for own in texts]
            begin = time.perf_counter()
            expected = source(contexts)
            times["all"].append(time.perf_counter() - begin)
            assert torch.equal(found, expected)
        row: dict[str, Any] = {"batch": batch, "source": name}
        for way, taken in times.items():
            row |= {way: statistics.median(taken), f"least_{way}": min(taken)}
        rows.append(row)
    return rows


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
    if options.sources:
        rows = [row for batch in options.batch for row in asking(batch, options.rounds)]
        names = ("all", "new", "least_all", "least_new")
        titles = ("source", "batch", *(f"{name.replace('_', ' ')}, µs" for name in names))
        lines = [
            [row["source"], str(row["batch"]), *(figure(1e6 * row[name]) for name in names)]
            for row in rows
        ]
        print(table(titles, lines, "lr"))
    else:
        rows = [measure(batch, options.vocabulary, options.rounds) for batch in options.batch]
        titles = ("batch", "operators, µs", "decoder, µs", "ratio", "the decoder's own, µs")
        lines = [
            [
                str(row["batch"]),
                *(figure(1e6 * row[name]) for name in ("operators", "decoder")),
                f"{row['ratio']:.2f}",
                figure(1e6 * row["own"]),
            ]
            for row in rows
        ]
        print(table(titles, lines, "r"))
    write_found(options.output, draft_length=K, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.decoder_time", description=__doc__)
    add = command.add_argument
    add("--batch", type=natural, nargs="+", default=[1, 64], metavar="B", help="(1 64)")
    add("--vocabulary", type=natural, default=128256, metavar="V", help="(%(default)s)")
    add("--rounds", type=natural, default=15, metavar="N", help="(%(default)s)")
    add("--drafter", type=Path, metavar="DIR", help="what proposing with it takes, in place of all")
    add("--sources", action="store_true", help="what sources of dynamic tokens take instead")
    add("--temperature", type=float, default=1.0, metavar="T", help="with --drafter (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
