"""What steering brings the demo's drafter, with and without the target's states.

`python -m studies.steering` lets the demo's target write texts by itself at temperature 1, behind
prompts from the modules that it was trained on. On these it trains `Steering` for the drafter with
its full head; the drafter stays as it is. The loss is 1 - α with α = sum_x min(p, q), exact
(`rdk_cuda.overlap`), of texts read as they are drafted (`steered_read`). Then α is measured on
texts that the target writes behind prompts from held-out modules. A row is a way:

    way             "plain"; "steered"; and as a control "shuffled", trained and measured in the
                    same way, but with the states of the batch dealt to its drafts at random: what
                    it gains has nothing to do with the states
    acceptance      α, with 95 % intervals over modules, as all that follows
    gain            over the plain drafter, paired
    gain_by_place   the same of a draft's first, second, ... token
    over_control    of "steered" over "shuffled", paired
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo.corpus import read_text, training_files
from examples.demo.shipped import load_shipped
from examples.demo.text import held_out_prompts, windows_of
from profiling.commands import Parser, run_command, write_text
from profiling.machine import describe, now
from profiling.tables import table
from rdk_cuda import Affinity, Vocabulary, overlap
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.progress import Stages
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.evaluation import Bootstrap
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface import HuggingFaceModel, Steering, steered_read
from rdk_cuda.pair.pairs import ModelPair

PROMPT, BATCH = 32, 8
PLAIN, STEERED, SHUFFLED = "plain", "steered", "shuffled"

Row = dict[str, Any]


class Shuffled(Steering):
    """Every draft is steered by the state of another one, of any text of the batch."""

    def vector(self, states: Tensor) -> Tensor:
        """As of `Steering`."""
        rows = states.flatten(0, 1)
        return super().vector(rows[torch.randperm(len(rows))].view_as(states))


def written(
    pair: ModelPair, prompts: Sequence[list[int]], tokens: int, seed: int, stages: Stages
) -> Tensor:
    """`[texts, PROMPT + tokens]`, what the target writes behind prompts by itself."""
    decoder = SpeculativeDecoder(HuggingFaceModel(pair.target), draft_length=0)
    texts = []
    for at in stages.each(range(0, len(prompts), BATCH), "The target writes"):
        some = prompts[at : at + BATCH]
        seeds = list(range(seed + at, seed + at + len(some)))
        new = decoder.generate(some, max_new_tokens=tokens, seeds=seeds).tokens
        texts += [[*prompt, *own] for prompt, own in zip(some, new, strict=True)]
    return torch.tensor(texts)


def rates(pair: ModelPair, steering: Steering, texts: Tensor, draft_length: int) -> Tensor:
    """α, `[texts, tokens]`, behind each token that is steered."""
    read = steered_read(pair.target, pair.drafter, steering, draft_length, prompt_length=PROMPT)
    logits, hidden = (rows[:, PROMPT - 1 :] for rows in read(texts))
    drafted = pair.drafter.get_output_embeddings()(hidden)
    affinity = Affinity.intersection(Vocabulary.identity(pair.vocabulary_size))
    return overlap(logits.contiguous(), drafted, affinity)


def trained(
    pair: ModelPair, steering: Steering, texts: Tensor, options: argparse.Namespace, stages: Stages
) -> Steering:
    """By Adam, the learning rate falling to 0."""
    torch.manual_seed(options.seed)
    optimizer = torch.optim.Adam(steering.parameters(), lr=options.learning_rate)
    batches = list(shuffled_batches(len(texts), options.epochs))
    for step, batch in enumerate(stages.each(batches, f"Training: {type(steering).__name__}")):
        optimizer.param_groups[0]["lr"] = options.learning_rate * (1 - step / len(batches))
        loss = 1 - rates(pair, steering, texts[batch], options.draft_length).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steering.requires_grad_(False)


def shuffled_batches(count: int, epochs: int) -> Iterator[Tensor]:
    """Which texts each step takes."""
    for _ in range(epochs):
        yield from torch.randperm(count).split(BATCH)


def measure(options: argparse.Namespace) -> tuple[list[Row], Row]:
    """All rows, and what they were measured on."""
    pair = load_shipped()
    pair.drafter.requires_grad_(False)
    with Stages() as stages:
        files = [file for file in training_files() if read_text(file).strip()]
        windows = windows_of(pair.tokenizer, files, options.texts * PROMPT, PROMPT)
        prompts = [window.ids for window in windows]
        texts = written(pair, prompts, options.tokens, 0, stages)
        held_out = held_out_prompts(pair.tokenizer, PROMPT) * options.continuations
        others = written(pair, [one.ids for one in held_out], options.tokens, 1 << 20, stages)
        found = {}
        for way, kind in ((PLAIN, Steering), (STEERED, Steering), (SHUFFLED, Shuffled)):
            steering = kind.between(pair.target, pair.drafter)
            if way != PLAIN:
                steering = trained(pair, steering, texts, options, stages)
            torch.manual_seed(options.seed)
            with torch.no_grad():
                parts = [
                    rates(pair, steering, some, options.draft_length)
                    for some in others.split(BATCH)
                ]
            found[way] = torch.cat(parts)
    modules = sorted({one.source for one in held_out})
    bootstrap = Bootstrap([modules.index(one.source) for one in held_out], seed=options.seed)
    about = {"training_positions": texts[:, PROMPT:].numel(), "parameters": size_of(steering)}
    about |= {"positions": found[PLAIN].numel(), "modules": len(modules)}
    return list(rows_of(found, bootstrap, options.draft_length)), about


def size_of(steering: Steering) -> int:
    """How many numbers are trained."""
    return sum(weight.numel() for weight in steering.parameters())


def rows_of(found: dict[str, Tensor], bootstrap: Bootstrap, draft_length: int) -> Iterator[Row]:
    """A row for each way."""
    for way, own in found.items():
        row: Row = {"way": way, "acceptance": bootstrap.mean(own)}
        if way != PLAIN:
            gain = own - found[PLAIN]
            places = [bootstrap.mean(gain[:, at::draft_length]) for at in range(draft_length)]
            row |= {"gain": bootstrap.mean(gain), "gain_by_place": places}
        if way == STEERED:
            row["over_control"] = bootstrap.mean(own - found[SHUFFLED])
        yield row


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    torch.set_num_threads(options.threads)
    rows, about = measure(options)
    print(page(rows))
    if options.output is not None:
        settings = {name: value for name, value in vars(options).items() if name != "output"}
        about |= {"run": now(), **describe(torch.device("cpu")), **settings}
        write_json({**about, "rows": rows}, options.output)
        write_text(f"{page(rows)}\n", options.output.with_suffix(".md"))


def page(rows: Sequence[Row]) -> str:
    """All rows as a table; gains in points."""
    titles = ("way", "accepted", "gain", "over the control", "gain by place")
    lines = []
    for row in rows:
        gains = [points(row[name]) if name in row else "" for name in ("gain", "over_control")]
        places = ", ".join(f"{100 * place[0]:+.2f}" for place in row.get("gain_by_place", ()))
        lines.append([row["way"], f"{row['acceptance'][0]:.4f}", *gains, places])
    return table(titles, lines, "lr")


def points(interval: Sequence[float]) -> str:
    """A difference with its ends."""
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * end for end in interval))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.steering", description=__doc__)
    add = command.add_argument
    for name, default, text in (
        ("texts", 512, "to train on"),
        ("tokens", 64, "of each text, behind its prompt"),
        ("continuations", 3, "of each held-out prompt"),
        ("epochs", 2, "over the texts"),
        ("draft-length", 4, "tokens of a draft"),
        ("threads", torch.get_num_threads(), "of torch"),
    ):
        add(f"--{name}", type=natural, default=default, metavar="N", help=f"{text} (%(default)s)")
    add("--learning-rate", type=float, default=3e-4, metavar="X", help="(%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file; next to it the rows as a table")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
