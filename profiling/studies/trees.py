"""How many drafts a pass of the target accepts: chains, by token or by block, and trees.

`python -m profiling.studies.trees` takes the demo's models and drafters of the full and of a pruned
vocabulary. After held-out contexts each drafter drafts a chain, drawn from its q, and a tree of the
nodes that it thinks likeliest (`rdk_cuda.decoding.trees.best_first`), of as many nodes: the target
reads as many positions. Both take the drafter as many passes, one for each node.

What is counted are not accepted drafts of one run but their exact expectation given the drafts, in
dense algebra, so that only the choice of contexts and the draws of chains are left to chance. A
chain of length K begins those that are longer, a tree the larger ones. Intervals are of resampled
documents, the same ones for all (paired).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from examples.demo.arguments import Settings
from examples.demo.calibration import build_methods, calibrate
from examples.demo.corpus import held_out_files, training_files
from examples.demo.shipped import load_shipped
from examples.demo.text import windows_of
from rdk_cuda.calibration.methods import DYNAMIC, FULL, PRUNED, RECOMMENDED, VIRTUAL, Method
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.models import Models
from rdk_cuda.cli.progress import Stages
from rdk_cuda.decoding.trees import Tree, attention_mask, best_first, depths
from rdk_cuda.evaluation.acceptance import Bootstrap
from rdk_cuda.files import write_json, write_whole

from ..commands import Parser, run_command
from ..machine import ROOT, describe, now
from ..tables import table

RESULTS = ROOT / "profiling" / "results" / "trees" / "demo.json"
LENGTHS = tuple(range(2, 9))  # K, drafts in a chain and nodes of a tree
TEMPERATURES = (0.0, 0.7, 1.0)
METHODS = (FULL, PRUNED, DYNAMIC, VIRTUAL, RECOMMENDED)
WAYS = ("chain by token", "chain by block", "tree")
KEEP = 0.0625
CONTEXT = 64  # tokens
BLOCK = 48  # contexts that are drafted for at once

Row = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """Both models, and a drafter of the demo's at a temperature."""

    models: Models
    method: Method
    temperature: float

    def probs(self, contexts: Tensor, tree: Tree) -> Tensor:
        """The drafter's q `[B, V_t]` after the newest node."""
        hidden = read(self.models.drafter, contexts, tree, hidden=True)[:, -1]
        drafter, sequences = self.method.drafter, branch_of_newest(contexts, tree)
        columns = drafter.columns(self.models.drafter_head, hidden, sequences)
        # Greedy drafts are the likeliest tokens at temperature 1.
        return rdk_cuda.redistribute(
            affinity=drafter.affinity, temperature=self.temperature or 1.0, **columns
        )

    def target_probs(self, contexts: Tensor, tree: Tree) -> Tensor:
        """The target's p `[B, N + 1, V_t]` after the root and every node."""
        logits = read(self.models.target, contexts, tree).float()
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(2), logits.shape[2]).float()
        return (logits / self.temperature).softmax(2)


def read(model: Any, contexts: Tensor, tree: Tree, *, hidden: bool = False) -> Tensor:
    """Logits or last hidden states after the root and every node, in one pass."""
    batch, length = contexts.shape
    seen = attention_mask(tree.parents, length)
    places = torch.arange(length).expand(batch, length)
    output = (model.model if hidden else model)(
        torch.cat([contexts, tree.tokens.clamp(min=0)], 1),
        attention_mask=torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min),
        position_ids=torch.cat([places, length + depths(tree.parents)], 1),
        use_cache=False,
    )
    rows: Tensor = output.last_hidden_state if hidden else output.logits
    return rows[:, length - 1 :]


def branch_of_newest(contexts: Tensor, tree: Tree) -> list[list[int]]:
    """The context of each sequence and the tokens down to its newest node, for dynamic tokens."""
    found = contexts.tolist()
    for sequence, tokens, parents in zip(
        found, tree.tokens.tolist(), tree.parents.tolist(), strict=True
    ):
        branch, node = [], len(tokens) - 1
        while node >= 0:
            branch.append(tokens[node])
            node = parents[node]
        sequence.extend(reversed(branch))
    return found


def drawn_chain(pair: Pair, contexts: Tensor, length: int, seed: int) -> tuple[Tree, Tensor]:
    """A chain drawn from q, its likeliest tokens at temperature 0; and q `[B, K, V_t]`."""
    batch, generator = len(contexts), torch.Generator().manual_seed(seed)
    parents = torch.arange(-1, length - 1).repeat(batch, 1)
    tokens, rows = torch.empty(batch, 0, dtype=torch.int64), []
    for place in range(length):
        rows.append(pair.probs(contexts, Tree(tokens, parents[:, :place])))
        if pair.temperature == 0:
            rows[-1] = torch.nn.functional.one_hot(rows[-1].argmax(1), rows[-1].shape[1]).float()
        drawn = torch.multinomial(rows[-1], 1, generator=generator)
        tokens = torch.cat([tokens, drawn], 1)
    return Tree(tokens, parents), torch.stack(rows, 1)


def ratios(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """`p(x) / q(x)` of the drafts of each chain: `[B, K]`."""
    places = tokens[..., None]
    return p[:, :-1].gather(2, places)[..., 0] / q.gather(2, places)[..., 0]


def accepted_by_token(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Expected accepted drafts of each chain: `[B, K]`, at each place of the chain by itself."""
    return ratios(p, q, tokens).clamp(max=1).cumprod(1)


def accepted_by_block(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Expected accepted drafts of the first 1, 2, ... K drafts of each chain, `[B, K]`.

    DESIGN section 2, "Block verification", with its sums.
    """
    ratio, length = ratios(p, q, tokens), tokens.shape[1]
    carried = [torch.ones(len(tokens))]
    for place in range(length):
        carried.append((carried[-1] * ratio[:, place]).clamp(max=1))
    accepts = []
    for place in range(length):
        excess = (carried[place][:, None] * p[:, place] - q[:, place]).clamp(min=0).sum(1)
        rest = excess + 1 - carried[place]
        accepts.append(torch.where(rest > 0, excess / rest, 0.0))
    found = []
    for last in range(1, length + 1):
        # At least prefix i: not all of the prefixes from i on are given up.
        given_up = 1 - torch.stack([*accepts[1:last], carried[last]], 1)
        at_least = 1 - given_up.flip(1).cumprod(1).flip(1)
        found.append(at_least.sum(1))
    return torch.stack(found, 1)


def accepted_of_tree(p: Tensor, tree: Tree) -> Tensor:
    """The probability that each node is reached, `[B, N]`."""
    reached = torch.ones(len(p), 1)
    for node in range(tree.tokens.shape[1]):
        above = tree.parents[:, node : node + 1] + 1
        rows = p.gather(1, above[..., None].expand(-1, 1, p.shape[2]))[:, 0]
        own = rows.gather(1, tree.tokens[:, node : node + 1].clamp(min=0))
        own = own.where(tree.tokens[:, node : node + 1] >= 0, 0.0)
        reached = torch.cat([reached, reached.gather(1, above) * own], 1)
    return reached[:, 1:]


@torch.no_grad()
def expected(pair: Pair, contexts: Tensor, longest: int, seed: int) -> Tensor:
    """Expected accepted drafts `[B, ways, K]`, of chains and trees of 1, 2, ... K drafts."""
    chain, q = drawn_chain(pair, contexts, longest, seed)
    p = pair.target_probs(contexts, chain)
    tree = best_first(lambda grown: pair.probs(contexts, grown), len(contexts), longest)
    by_token = accepted_by_token(p, q, chain.tokens).cumsum(1)
    by_block = accepted_by_block(p, q, chain.tokens) if pair.temperature else by_token
    of_tree = accepted_of_tree(pair.target_probs(contexts, tree), tree).cumsum(1)
    return torch.stack([by_token, by_block, of_tree], 1)


def rows_of(pair: Pair, found: Tensor, bootstrap: Bootstrap) -> list[Row]:
    """For each K the means, and the differences from chains by token, with intervals."""
    rows = []
    for length in LENGTHS:
        row: Row = {
            "method": pair.method.name,
            "temperature": pair.temperature,
            "drafts": length,
        }
        for way, name in enumerate(WAYS):
            accepted = found[:, way, length - 1 : length]
            row[name] = list(bootstrap.mean(accepted))
            if way > 0:
                gain = accepted - found[:, 0, length - 1 : length]
                row[f"{name}, gain"] = list(bootstrap.mean(gain))
        rows.append(row)
    return rows


def measure(settings: Settings, contexts: int, stages: Stages) -> tuple[list[Row], int]:
    """All rows, and how many documents the contexts are from."""
    models = load_shipped()
    training = windows_of(
        models.tokenizer, training_files(), 3 * settings.positions, settings.length
    )
    held_out = windows_of(models.tokenizer, held_out_files(), contexts * CONTEXT, CONTEXT)
    held_out = held_out[:contexts]
    ids = torch.tensor([window.ids[:CONTEXT] for window in held_out])
    bootstrap = Bootstrap([window.document for window in held_out], seed=settings.seed)
    # One calibration for all temperatures: what is kept, and the clusters, are those of T = 1.
    material = calibrate(models, training, settings, stages.each)
    methods = {m.name: m for m in build_methods(material, settings.keep, settings)}
    rows = []
    pairs = [Pair(models, methods[name], t) for name in METHODS for t in TEMPERATURES]
    for pair in stages.each(pairs, "Measuring chains and trees"):
        parts = [
            expected(pair, part, max(LENGTHS), seed)
            for seed, part in enumerate(ids.split(BLOCK), start=settings.seed)
        ]
        rows += rows_of(pair, torch.cat(parts), bootstrap)
    return rows, len(bootstrap.members)


def lines_of(rows: Sequence[Row]) -> list[list[str]]:
    """Cells of a table: a line for each drafter and temperature, at a K each."""
    return [
        [
            row["method"],
            f"{row['temperature']:g}",
            str(row["drafts"]),
            *(f"{row[way][0]:.2f}" for way in WAYS),
            *("{:+.2f} ({:+.2f} to {:+.2f})".format(*row[f"{way}, gain"]) for way in WAYS[1:]),
        ]
        for row in rows
    ]


TITLES = ("drafter", "T", "K", *WAYS, "gain by block", "gain of trees")


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    settings = Settings(keep=(KEEP,), positions=options.positions)
    with Stages() as stages:
        rows, documents = measure(settings, options.contexts, stages)
    lines = table(TITLES, lines_of(rows), "lrr")
    print(lines)
    about: Row = {"contexts": options.contexts, "documents": documents, "context": CONTEXT}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    about |= describe(torch.device("cpu"))
    write_json({"run": now(), "keep": KEEP, **about, "rows": rows}, options.output)
    page = f"Accepted drafts a pass of the target, and gains over chains by token.\n\n{lines}\n"
    write_whole(
        options.output.with_suffix(".md"), lambda path: path.write_text(page, encoding="utf-8")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    made = Parser(prog="python -m profiling.studies.trees", description=__doc__)
    made.add_argument("--contexts", type=natural, default=160, help="held-out ones (%(default)s)")
    made.add_argument(
        "--positions", type=natural, default=2048, help="a third of what calibration reads"
    )
    made.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(made, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
