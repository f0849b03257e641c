"""What steering brings the demo's drafter, with and without the target's states.

`python -m studies.steering` trains `Steering` for the drafter with its full head, as
`python -m rdk_cuda.labs.steering distill` does it at temperature 1, by 1 - α with
α = sum_x min(p, q), on texts that the target writes behind beginnings of the demo's calibration
text. Then α is measured on texts that it writes behind those of held-out modules. A row is a way:

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
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo.corpus import calibration_files, held_out_files
from examples.demo.shipped import SHIPPED, load_shipped
from profiling.commands import Parser, run_command, write_found
from profiling.tables import table
from rdk_cuda import Vocabulary
from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.cli.distill import add_distill
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.evaluation import Bootstrap
from rdk_cuda.labs.steering import Steering
from rdk_cuda.labs.steering.job import SteeredPair, SteeredTrain
from rdk_cuda.recipes.inputs.loading import quiet
from rdk_cuda.recipes.request import Training
from rdk_cuda.recipes.stages.stage import State

PROMPT, CHOOSE = 32, 32
PLAIN, STEERED, SHUFFLED = "plain", "steered", "shuffled"

Row = dict[str, Any]


class Shuffled(Steering):
    """Every draft is steered by the state of another one, of any text of the batch."""

    def vector(self, states: Tensor) -> Tensor:
        """As in `Steering`."""
        rows = states.flatten(0, -2)
        return super().vector(rows[torch.randperm(len(rows))].view_as(states))


def asked(options: argparse.Namespace, out: Path) -> Training:
    """The request of `distill`."""
    command = Parser()
    add_distill(command.add_subparsers())
    given: Sequence[object] = (
        *("distill", SHIPPED / "drafter", "--target", SHIPPED / "target", "--out", out),
        *("--text", *calibration_files(), "--held-out", *held_out_files()),
        *("--train", "steering", "--prompt", PROMPT, "--tokens", options.tokens),
        *("--steps", options.steps, "--draft-length", options.draft_length),
        *("--learning-rate", options.learning_rate, "--seed", options.seed),
    )
    return Training.of(command.parse_args(list(map(str, given))), out)


def measure(options: argparse.Namespace, folder: Path) -> tuple[list[Row], Row]:
    """All rows, and what they were measured on."""
    pair = load_shipped()
    found: dict[str, Tensor] = {}
    whole = PrunedDrafter.plain(pair.drafter_head, Vocabulary.identity(pair.vocabulary_size))
    for way, kind in ((STEERED, Steering), (SHUFFLED, Shuffled)):
        torch.manual_seed(options.seed)
        steering = kind.between(pair.target, pair.drafter)
        steered = SteeredPair(**vars(pair), steering=steering)
        stage = SteeredTrain(whole, {}, steering=steering)
        state = State.of(asked(options, folder / way), steered)
        text, held_out = state.text.documents, state.held_out.documents
        with state.progress:
            chooses = stage.draw(state, "target", text, CHOOSE, 0)
            measures = stage.draw(state, "target", held_out, options.texts, 1)
            outcome = stage.train(state, "tv", chooses, measures)
            found.setdefault(PLAIN, outcome.before[:, 1:])  # the first row is not steered
            found[way] = outcome.after[:, 1:]
    documents = [window.document for window in measures]
    bootstrap = Bootstrap(documents, seed=options.seed)
    about = {"positions": found[PLAIN].numel(), "modules": len(set(documents))}
    about |= {"parameters": size_of(steering)}
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
    quiet()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows, about = measure(options, Path(folder))
    print(page(rows))
    about |= {name: value for name, value in vars(options).items() if name != "output"}
    write_found(options.output, page(rows), **about, rows=rows)


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
        ("steps", 150, "of the training, at most"),
        ("texts", 128, "to measure on"),
        ("tokens", 64, "of each text, behind its prompt"),
        ("draft-length", 4, "tokens of a draft"),
        ("threads", torch.get_num_threads(), "of torch"),
    ):
        add(f"--{name}", type=natural, default=default, metavar="N", help=f"{text} (%(default)s)")
    add("--learning-rate", type=positive, default=3e-4, metavar="X", help="(%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file; next to it the rows as a table")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
