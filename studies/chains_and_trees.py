"""How many drafts a pass of the target accepts: chains, by token or by block, and trees.

`python -m studies.chains_and_trees` takes the demo's target, and its drafter or an EAGLE-3 drafter
(`--drafter DIR`), with the full and with a pruned vocabulary. After held-out contexts each drafter
drafts a chain, drawn from its q, and a tree of the nodes that it thinks likeliest
(`rdk_cuda.decoding.trees.best_first`), of as many nodes: the target reads as many positions. Both
take the drafter as many passes, one for each node.

What is counted are not accepted drafts of one run but their exact expectation given the drafts, in
dense algebra, so that only the choice of contexts and the draws of chains are left to chance. A
chain of length K begins those that are longer, a tree the larger ones. Intervals are of resampled
documents, the same ones for all (paired). For each way a row has accepted drafts, their gain over
chains by token, and the rows of the target's logits that `verify` or `verify_tree` reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import rdk_cuda
from examples.demo.arguments import Settings
from examples.demo.calibration import build_methods
from examples.demo.corpus import held_out_files, read_text, training_files
from examples.demo.shipped import SHIPPED
from examples.demo.text import windows_of
from profiling.commands import Parser, run_command, write_text
from profiling.machine import ROOT, describe, now
from profiling.tables import table
from rdk_cuda.calibration import Material, successor_counts
from rdk_cuda.calibration.methods import DYNAMIC, FULL, PRUNED, RECOMMENDED, VIRTUAL, Method
from rdk_cuda.calibration.reading import Window
from rdk_cuda.calibration.record import record
from rdk_cuda.calibration.recording import Each
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.progress import Stages
from rdk_cuda.decoding import Output
from rdk_cuda.decoding.trees import Tree, best_first, branch
from rdk_cuda.evaluation.acceptance import Bootstrap
from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.pair.documents import encode
from rdk_cuda.pair.loading import load_pair
from rdk_cuda.pair.pairs import Pair as Models
from rdk_cuda.pair.pairs import StatePair

RESULTS = ROOT / "profiling" / "results" / "trees" / "demo.json"
LENGTHS = tuple(range(2, 9))  # K, drafts in a chain and nodes of a tree
TEMPERATURES = (0.0, 0.7, 1.0)
DRAFTERS = (FULL, PRUNED, DYNAMIC, VIRTUAL, RECOMMENDED)
WAYS = BY_TOKEN, BY_BLOCK, TREE = "chain by token", "chain by block", "tree"
KEEP = 0.0625
CONTEXT = 64  # tokens
BLOCK = 48  # contexts that are drafted for at once

Row = dict[str, Any]
Hidden = Callable[[Tree], Tensor]  # the drafter's last state `[B, d]` after the newest node


@dataclass(frozen=True)
class Pair:
    """Both models, and a drafter of the demo's at a temperature."""

    models: Models
    method: Method
    temperature: float

    def columns(self, hidden: Tensor, branches: list[list[int]]) -> dict[str, Tensor]:
        """The drafter's logits, and dynamic columns if any."""
        return self.method.drafter.columns(self.models.drafter_head, hidden, branches)

    def probs(self, hidden: Tensor, branches: list[list[int]]) -> Tensor:
        """The drafter's q `[B, V_t]`. Greedy drafts are the likeliest tokens at temperature 1."""
        affinity, temperature = self.method.drafter.affinity, self.temperature or 1.0
        return rdk_cuda.redistribute(
            affinity=affinity, temperature=temperature, **self.columns(hidden, branches)
        )

    def target_probs(self, contexts: Tensor, tree: Tree) -> Tensor:
        """The target's p `[B, N + 1, V_t]` after the root and every node."""
        logits = reading(HuggingFaceModel(self.models.target), contexts)(tree).logits.float()
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(2), logits.shape[2]).float()
        return (logits / self.temperature).softmax(2)


def reading(model: HuggingFaceModel, contexts: Tensor) -> Callable[[Tree], Output]:
    """Reads trees after these contexts, whose last tokens are the roots."""
    texts, (batch, length) = contexts.tolist(), contexts.shape
    model.reset(batch)
    model.feed([text[:-1] for text in texts], [0] * batch)

    def run(tree: Tree) -> Output:
        model.rollback([length - 1] * batch)
        nodes = tree.tokens.clamp(min=0).tolist()
        tokens = [text[-1:] + own for text, own in zip(texts, nodes, strict=True)]
        return model.feed_tree(tokens, list(map(len, tokens)), tree.parents.tolist())

    return run


@torch.no_grad()
def drafting(models: Models, contexts: Tensor) -> Hidden:
    """The drafter after these contexts."""
    if not isinstance(models, StatePair):
        read = reading(HuggingFaceModel(models.drafter, return_hidden=True), contexts)
        return lambda tree: cast(Tensor, read(tree).hidden)[:, -1]
    drafter, texts = models.drafting(), contexts.tolist()
    batch, length = contexts.shape
    target = HuggingFaceModel(models.target, state_layers=drafter.state_layers)
    target.reset(batch)
    states = target.feed(texts, [length] * batch).states
    assert states is not None  # it was told which layers
    drafter.reset(batch)
    drafter.observe([each[:-1] for each in states])
    drafter.feed([text[:-1] for text in texts], [1] * batch)

    def fed(tokens: list[list[int]]) -> Tensor:
        hidden = drafter.feed(tokens, [len(new) for new in tokens]).hidden
        assert hidden is not None
        return hidden[:, -1]

    def run(tree: Tree) -> Tensor:
        drafter.rollback([length - 1] * batch)
        branches = branch_of_newest(contexts, tree)
        hidden = fed([text[-1:] for text in texts])
        for place in range(length, max(map(len, branches))):
            new = [branch[place : place + 1] for branch in branches]
            longer = torch.tensor(list(map(bool, new)))[:, None]
            hidden = fed(new).where(longer, hidden)
        return hidden

    return run


def branch_of_newest(contexts: Tensor, tree: Tree) -> list[list[int]]:
    """The context of each sequence and the tokens down to its newest node, for dynamic tokens."""
    nodes = zip(contexts.tolist(), tree.tokens.tolist(), tree.parents.tolist(), strict=True)
    return [
        text + [tokens[node] for node in branch(parents, len(tokens) - 1)]
        for text, tokens, parents in nodes
    ]


def drawn_chain(
    pair: Pair, contexts: Tensor, hidden: Hidden, length: int, seed: int
) -> tuple[Tree, Tensor]:
    """A chain drawn from q, its likeliest tokens at temperature 0; and q `[B, K, V_t]`."""
    batch, generator = len(contexts), torch.Generator().manual_seed(seed)
    parents = torch.arange(-1, length - 1).repeat(batch, 1)
    tokens, rows = torch.empty(batch, 0, dtype=torch.int64), []
    for place in range(length):
        chain = Tree(tokens, parents[:, :place])
        rows.append(pair.probs(hidden(chain), branch_of_newest(contexts, chain)))
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


def factors(p: Tensor, q: Tensor, tokens: Tensor) -> list[Tensor]:
    """`c_0` to `c_K`, `[B]` each: DESIGN section 2, "Block verification"."""
    carried = [torch.ones(len(tokens))]
    for ratio in ratios(p, q, tokens).unbind(1):
        carried.append((carried[-1] * ratio).clamp(max=1))
    return carried


def accepted_by_block(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Expected accepted drafts of the first 1, 2, ... K drafts of each chain, `[B, K]`.

    DESIGN section 2, "Block verification", with its sums.
    """
    carried, length = factors(p, q, tokens), tokens.shape[1]
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
def expected(pair: Pair, contexts: Tensor, hidden: Hidden, longest: int, seed: int) -> Tensor:
    """`[2, B, ways, K]`: accepted drafts, and rows read, of chains and trees of 1, 2, ... K."""
    chain, q = drawn_chain(pair, contexts, hidden, longest, seed)
    p = pair.target_probs(contexts, chain)
    tree = best_first(
        lambda grown: pair.probs(hidden(grown), branch_of_newest(contexts, grown)),
        len(contexts),
        longest,
    )
    by_token = accepted_by_token(p, q, chain.tokens).cumsum(1)
    of_tree = accepted_of_tree(pair.target_probs(contexts, tree), tree).cumsum(1)
    by_block, read_by_block = by_token, by_token + 1
    if pair.temperature > 0:
        by_block = accepted_by_block(p, q, chain.tokens)
        # All drafts' rows, and the last where the whole draft may be accepted.
        last = torch.stack(factors(p, q, chain.tokens)[1:], 1)
        read_by_block = last + torch.arange(1, longest + 1)
    accepted = torch.stack([by_token, by_block, of_tree], 1)
    return torch.stack([accepted, torch.stack([by_token + 1, read_by_block, of_tree + 1], 1)])


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
            accepted, read_rows = found[:, :, way, length - 1 : length]
            row[name] = list(bootstrap.mean(accepted))
            if way > 0:
                gain = accepted - found[0, :, 0, length - 1 : length]
                row[f"{name}, gain"] = list(bootstrap.mean(gain))
            row[f"{name}, rows read"] = list(bootstrap.mean(read_rows))
        rows.append(row)
    return rows


def calibrated(
    models: Models, windows: Sequence[Window], settings: Settings, each: Each
) -> tuple[Models, Material]:
    """One calibration for all temperatures: what is kept, and the clusters, are those of T = 1."""
    recording = record(
        models.read(max(LENGTHS)),
        windows,
        temperatures=(settings.temperature,),
        context=settings.window,
        seed=settings.seed,
        each=each,
    )
    models = models.with_rows(recording)
    files = each(training_files(), "Calibrating: counting successors")
    documents = (encode(models.tokenizer, read_text(file)) for file in files)
    successors = successor_counts(documents, recording)
    return models, Material(recording, models.drafter_head, successors)


def measure(
    models: Models, settings: Settings, contexts: int, stages: Stages
) -> tuple[list[Row], int]:
    """All rows, and how many documents the contexts are from."""
    training = windows_of(
        models.tokenizer, training_files(), 3 * settings.positions, settings.length
    )
    held_out = windows_of(models.tokenizer, held_out_files(), contexts * CONTEXT, CONTEXT)
    held_out = held_out[:contexts]
    ids = torch.tensor([window.ids[:CONTEXT] for window in held_out])
    bootstrap = Bootstrap([window.document for window in held_out], seed=settings.seed)
    models, material = calibrated(models, training, settings, stages.each)
    methods = build_methods(material, settings.keep, settings)
    chosen = [method for method in methods if method.name in DRAFTERS]
    parts = ids.split(BLOCK)
    drafters = [drafting(models, part) for part in parts]
    rows = []
    pairs = [Pair(models, method, t) for method in chosen for t in TEMPERATURES]
    for pair in stages.each(pairs, "Measuring chains and trees"):
        found = [
            expected(pair, part, hidden, max(LENGTHS), seed)
            for seed, (part, hidden) in enumerate(
                zip(parts, drafters, strict=True), start=settings.seed
            )
        ]
        rows += rows_of(pair, torch.cat(found, 1), bootstrap)
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
            *(f"{row[f'{way}, rows read'][0]:.2f}" for way in WAYS),
        ]
        for row in rows
    ]


TITLES = (
    *("drafter", "T", "K", *WAYS, "gain by block", "gain of trees"),
    *("rows by token", "by block", "of a tree"),
)


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    settings = Settings(keep=(KEEP,), positions=options.positions)
    models = load_pair(SHIPPED / "target", options.drafter)
    with Stages() as stages:
        rows, documents = measure(models, settings, options.contexts, stages)
    lines = table(TITLES, lines_of(rows), "lrr")
    print(lines)
    about: Row = {"contexts": options.contexts, "documents": documents, "context": CONTEXT}
    about["target size"] = models.vocabulary_size
    options.output.parent.mkdir(parents=True, exist_ok=True)
    about |= describe(torch.device("cpu"))
    write_json({"run": now(), "keep": KEEP, **about, "rows": rows}, options.output)
    page = f"Accepted drafts a pass of the target, and gains over chains by token.\n\n{lines}\n"
    write_text(page, options.output.with_suffix(".md"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    made = Parser(prog="python -m studies.chains_and_trees", description=__doc__)
    add, own = made.add_argument, SHIPPED / "drafter"
    add("--drafter", type=Path, default=own, metavar="DIR", help="default: the demo's")
    add("--contexts", type=natural, default=160, help="held-out ones (%(default)s)")
    add("--positions", type=natural, default=2048, help="a third of what calibration reads")
    add("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(made, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
