"""What an EAGLE-3 drafter of Gemma 3 270M loses to a small vocabulary, and what comes back.

`python -m profiling.studies.gemma_heads --full DIR` takes the drafter with all 262,144 tokens that
`python -m examples.eagle3.gemma` trains, and prunes it to tokens chosen on like text, and to the
tokenizer's first ones, a general vocabulary, as published drafters have. What comes back for a
drafter whose pruned rows nobody has is a study of its own, `lifted_rows`. Every third position is
the first, second or third token of a draft.

Figures are of modules that neither training, calibration nor choice of tokens has seen. Acceptance
is exact, `sum_x min(p, q)`, at positions of the text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo.corpus import docstrings, held_out_files, read_text, training_files
from examples.eagle3.training import unrolled
from rdk_cuda import Vocabulary
from rdk_cuda.calibration.methods import PRUNED
from rdk_cuda.cli.arguments import share
from rdk_cuda.cli.models import Models
from rdk_cuda.evaluation import Bootstrap
from rdk_cuda.integrations.eagle3 import Eagle3Network, read_checkpoint

from ..commands import Parser, run_command
from .gemma_acceptance import (
    KEEPS,
    TEMPERATURES,
    Recorded,
    Row,
    add_options,
    mean_probs_at,
    measure_kinds,
    measured,
    span,
    successor_counts,
)
from .gemma_screens import WINDOW, Pair, line, measure_pruning

CALIBRATED, DEPTHS, STRIDE, FIRST = 20, 3, 5, 64


def tokens_of(files: Iterable[Path], kind: str, tokenizer: Any) -> Iterator[list[int]]:
    """A kind of text, file by file."""
    for file in files:
        text = read_text(file)
        yield tokenizer(docstrings(text) if kind == "prose" else text)["input_ids"]


def windows_of(files: Iterable[Path], kind: str, tokenizer: Any, count: int) -> Tensor:
    """`[n, WINDOW]` tokens: the beginnings of the first `count` files that are so long."""
    long = (each for each in tokens_of(files, kind, tokenizer) if len(each) >= WINDOW)
    return torch.tensor([tokens[:WINDOW] for tokens in islice(long, count)])


@torch.no_grad()
def record(model: Any, network: Eagle3Network, windows: Tensor) -> Recorded:
    """Final hidden states of the target and of a drafter, at the same positions.

    Position j of a window predicts its token j + 1. The drafter has the target's states up to j - 1
    less the place in the draft, and its own after that.
    """
    places = torch.arange(FIRST, WINDOW, STRIDE)
    padded = torch.nn.functional.pad(windows, (255, 0), value=-1)
    contexts = padded.unfold(1, 256, 1)[:, places]
    targets, drafters = [], []
    layers = network.config.layers_read(model.config.get_text_config().num_hidden_layers)
    for part in windows.split(4):
        output = model.base_model(part, output_hidden_states=True, use_cache=False)
        read = torch.cat([output.hidden_states[at] for at in layers], dim=-1)
        targets.append(output.last_hidden_state[:, places])
        drafters.append(drafted(network, part, read)[:, places])
    return Recorded(torch.cat(targets), torch.cat(drafters), contexts)


def drafted(network: Eagle3Network, windows: Tensor, read: Tensor) -> Tensor:
    """`[n, WINDOW, d]` states that predict each next token, of each place in a draft by turns."""
    result = read.new_zeros(*windows.shape, network.config.layer.hidden_size)
    for depth, hidden in enumerate(unrolled(network, windows, read, DEPTHS)):
        # Entry i has read the tokens up to i + 1 + depth.
        shifted = torch.nn.functional.pad(network.norm(hidden), (0, 0, 1 + depth, 0))
        own = (torch.arange(WINDOW) - FIRST) // STRIDE % DEPTHS == depth
        result[:, own] = shifted[:, :WINDOW][:, own]
    return result


def rows_of(kind: str, models: Models, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of one kind of text: what pruning loses and, where it loses some, what comes back."""
    model, tokenizer = models.target, models.tokenizer
    network = read_checkpoint(options.full, model).network
    head = model.get_output_embeddings().weight.detach()
    files, held_out = training_files(), held_out_files()
    some = files[:: len(files) // (3 * CALIBRATED)]
    near = record(model, network, windows_of(some, kind, tokenizer, CALIBRATED))
    far = record(model, network, windows_of(held_out, kind, tokenizer, len(held_out)))
    counts = successor_counts(len(head), tokens_of(files[::3], kind, tokenizer))
    mean_probs = mean_probs_at(near.target, head)
    for size in (round(keep * len(head)) for keep in options.keep):
        vocabularies = {
            "like text": Vocabulary.most_likely(mean_probs[1.0], size),
            "a general vocabulary": Vocabulary(torch.arange(size), len(head)),
        }
        for chosen, vocabulary in vocabularies.items():
            about: Row = {"text": kind, "chosen": chosen, "keep": round(size / len(head), 6)}
            lost = list(loss_rows(head, vocabulary, far))
            yield from ({**about, **row} for row in lost)
            if any(row["lost"][1] > 0 for row in lost):
                pair = Pair(head, vocabulary, mean_probs, counts, near, far)
                yield from ({**about, **row} for row in measure_pruning(pair))


def loss_rows(head: Tensor, vocabulary: Vocabulary, held_out: Recorded) -> Iterator[Row]:
    """At each temperature acceptance of a drafter with all tokens, a pruned one, and the loss."""
    for temperature in TEMPERATURES:
        found = measured(head, held_out, vocabulary, temperature)
        bootstrap = Bootstrap(list(range(len(found.full))), seed=0)
        yield {
            "temperature": temperature,
            "method": PRUNED,
            "positions": found.full.numel(),
            "full": bootstrap.mean(found.full),
            "pruned": bootstrap.mean(found.pruned),
            "lost": bootstrap.mean(found.full - found.pruned),
        }


def row_line(row: Row) -> str:
    """A row on a terminal."""
    return loss_line(row) if "lost" in row else line(row)


def loss_line(row: Row) -> str:
    """A row of `loss_rows` on a terminal."""
    kept = f"{row['keep']:.1%} kept, {row['chosen']}"
    where = f"{row['text']}, {kept}, T = {row['temperature']}"
    return f"{where}: {row['full'][0]:.3f} to {row['pruned'][0]:.3f}, lost {span(row['lost'])} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.gemma_heads", description=__doc__)
    command.add_argument(
        "--full", type=Path, required=True, metavar="DIR", help="the drafter with all tokens"
    )
    command.add_argument(
        "--keep", type=share, nargs="+", default=KEEPS, metavar="SHARE", help="kept tokens"
    )
    add_options(command)

    def run(options: argparse.Namespace) -> None:
        measure_kinds(options, lambda kind, models: rows_of(kind, models, options), row_line)

    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
