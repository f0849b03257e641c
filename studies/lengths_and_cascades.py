"""What it brings that drafts know when to stop, and that something drafts for the drafter.

    python -m studies.lengths_and_cascades --output FILE

*Lengths*: after held-out contexts the demo's drafter, pruned, drafts K tokens each. Every rule is
asked about these same drafts, and how many are accepted is the exact expectation given them. Its
threshold is the best on contexts of the calibration text. The oracle stops before a token that will
be rejected. *Cascades* are decoded, and passes counted: each drafter alone, and the whole one with
n-grams or the pruned one in front of it, or both.

Speeds are tokens in the time of a pass of the target over one token: at the times that passes over
1, 2, ... tokens take here, in turn, and where a pass of any length takes the target 1 and the
drafter c. The time of sampling and of the decoder itself is not included.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from examples.demo.arguments import Settings
from examples.demo.calibration import calibrate, pruned_to
from examples.demo.corpus import held_out_files, training_files
from examples.demo.decoding import drafter_of
from examples.demo.shipped import load_shipped
from examples.demo.text import held_out_prompts, windows_of
from profiling.commands import Parser, run_command, write_found
from rdk_cuda import Draft
from rdk_cuda.calibration import Method, calibrate_length
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import DrafterChain, NGrams, Proposer, SpeculativeDecoder
from rdk_cuda.decoding.generation import Batch
from rdk_cuda.decoding.lengths import Classifier, Drafted, Length, Product
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.cascades import Cascade
from rdk_cuda.labs.length_rules import Confidence, EntropyBound
from rdk_cuda.recipes.inputs.documents import Window
from rdk_cuda.recipes.inputs.loading import quiet
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.recipes.progress import Stages
from rdk_cuda.recipes.report.rows import Bootstrap
from rdk_cuda.recipes.stages.lengths import THRESHOLDS, fit_classifier, places_of
from rdk_cuda.recipes.stages.pruning import RECOMMENDED

KEEP, TEMPERATURE, MOST, CONTEXT, BLOCK, ROUNDS = 0.0625, 1.0, 8, 64, 48, 61
COSTS = (0.1, 0.2, 0.3)
LENGTHS = (2, 3, 4, 6, 8)  # K of cascades

Row = dict[str, Any]


class Costs(NamedTuple):
    """What passes over 1, 2, ... tokens cost.

    Attributes:
        name: as rows have it.
        target, drafter, pruned: of each model, `MOST + 1` numbers.
    """

    name: str
    target: Tensor
    drafter: Tensor
    pruned: Tensor


def chain_of(pair: ModelPair, method: Method, length: int) -> DrafterChain:
    """A method's drafter, as the decoder makes it."""
    model, drafter = counted(pair, method), method.drafter
    return DrafterChain(
        model, drafter.affinity, draft_length=length, dynamic_tokens=drafter.dynamic_tokens
    )


class Counted:
    """A model whose passes are counted for each sequence, by how many tokens it reads."""

    def __init__(self, model: Any) -> None:
        self.model, self.passes = model, Counter[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Any:
        """As the model's; of a prompt only what is predicted after counts."""
        read = zip(tokens, keep, strict=True)
        self.passes.update(min(len(new), MOST + 1) for new, kept in read if kept)
        return self.model.feed(tokens, keep)

    def cost(self, each: Tensor) -> float:
        """Of all passes."""
        return sum(float(each[n - 1]) * count for n, count in self.passes.items())


def counted(pair: ModelPair, method: Method | None) -> Any:
    """A method's drafter, or the target."""
    if method is None:
        return Counted(HuggingFaceModel(pair.target))
    return Counted(drafter_of(pair, method))


def measured_costs(pair: ModelPair, pruned: Method, text: Sequence[int]) -> tuple[Costs, float]:
    """Medians of passes in turn, in passes of the target over one token; and its seconds."""
    models = [counted(pair, method) for method in (None, Method.whole(pair), pruned)]
    for model in models:
        model.reset(1)
        model.feed([text[:CONTEXT]], [1])
    seconds = torch.zeros(ROUNDS, len(models), MOST + 1)
    for turn in range(ROUNDS):
        for at, model in enumerate(models):
            for count in range(1, MOST + 2):
                start = time.perf_counter()
                model.feed([text[CONTEXT : CONTEXT + count]], [count if at == 0 else 1])
                seconds[turn, at, count - 1] = time.perf_counter() - start
                model.rollback([CONTEXT])
    medians = seconds.median(0).values
    one = medians[0, 0]
    return Costs("the pair's", *(medians / one).unbind()), float(one)


def all_costs(own: Costs) -> list[Costs]:
    """The pair's, and those of `COSTS`; the pruned drafter's is less by the pair's ratio."""
    one, less = torch.ones(MOST + 1), float(own.pruned[0] / own.drafter[0])
    return [own, *(Costs(f"c = {c}", one, c * one, c * less * one) for c in COSTS)]


class Drafts(NamedTuple):
    """Chains of `MOST` tokens, and what rules see of them.

    Attributes:
        accepted: `[n, MOST]`, with which probability each is accepted, if those before it are.
        probs, entropies, features: as in `Drafted`.
        documents: `[n]`.
    """

    accepted: Tensor
    probs: Tensor
    entropies: Tensor
    features: Tensor
    documents: Tensor

    def lengths(self, rule: Length) -> Tensor:
        """`[n]`: how many tokens each drafts."""
        going = torch.ones(len(self.accepted), dtype=torch.bool)
        count = going.long()
        for place in range(1, MOST):
            seen: Any = SimpleNamespace(**{name: getattr(self, name)[:, :place] for name in SEEN})
            going = going & rule(seen)
            count += going
        return count


OF_PLACES = ("tokens", "logits", "stats", "dynamic_tokens", "dynamic_logits")
SEEN = ("probs", "entropies", "features")


def single_places(draft: Draft) -> list[Draft]:
    """As rules see a draft: one for each of its places."""
    parts = {name: getattr(draft, name) for name in OF_PLACES}
    return [
        replace(draft, **{n: part[:, k : k + 1] for n, part in parts.items() if part is not None})
        for k in range(draft.tokens.shape[1])
    ]


@torch.no_grad()
def drafts_after(pair: ModelPair, method: Method, windows: Sequence[Window], seed: int) -> Drafts:
    """One chain after each window, drawn by the decoder's own part, judged by the target."""
    chain, target = chain_of(pair, method, MOST), HuggingFaceModel(pair.target)
    parts = []
    for first in range(0, len(windows), BLOCK):
        some = windows[first : first + BLOCK]
        seeds = [seed + first + b for b in range(len(some))]
        ids = [list(window.ids) for window in some]
        batch = Batch.of(ids, MOST + 1, TEMPERATURE, seeds, None, target.device)
        chain.reset(len(some))
        drawn = chain.propose(batch.sequences, batch.step([MOST + 1] * len(some)))
        target.reset(len(some))
        read = [s.context for s in batch.sequences]
        p = target.feed(read, [MOST + 1] * len(some)).logits.softmax(2)[:, :-1]
        seen = Drafted(method.drafter.affinity)
        seen.places += single_places(drawn.draft)
        q = seen.probs
        ratio = p.gather(2, drawn.tokens[:, :, None])[:, :, 0] / q
        documents = torch.tensor([window.document for window in some])
        parts.append(Drafts(ratio.clamp(max=1), q, seen.entropies, seen.features, documents))
    return Drafts(*map(torch.cat, zip(*parts, strict=True)))


class Told(NamedTuple):
    """What a rule brings on some drafts: `[n]` expected tokens, and costs."""

    tokens: Tensor
    cost: Tensor
    passes: Tensor

    @property
    def speed(self) -> float:
        """Tokens in a pass of the target."""
        return float(self.tokens.sum() / self.cost.sum())


def told(drafts: Drafts, lengths: Tensor, costs: Costs) -> Told:
    """Of drafts that are cut to these lengths."""
    kept = torch.arange(MOST) < lengths[:, None]
    tokens = 1 + (drafts.accepted.cumprod(1) * kept).sum(1)
    return Told(tokens, costs.target[lengths] + costs.pruned[0] * lengths, lengths.float())


def fixed_to(length: int, drafts: Drafts) -> Tensor:
    """As many tokens everywhere."""
    return torch.full((len(drafts.accepted),), length)


def oracle(drafts: Drafts, costs: Costs, most: int) -> Told:
    """Drafts what will be accepted, up to K: as many passes as accepted tokens."""
    stays = drafts.accepted[:, :most].cumprod(1)
    ends = torch.cat([torch.ones(len(stays), 1), stays], 1)
    chance = ends - torch.nn.functional.pad(ends[:, 1:], (0, 1))  # of 0, 1, ... accepted
    count = torch.arange(most + 1)
    cost = costs.target[count] + costs.pruned[0] * count
    return Told(1 + stays.sum(1), (chance * cost).sum(1), stays.sum(1))


def rules_of(classifier: Classifier) -> dict[str, Callable[[float], Length]]:
    """Each rule by its threshold."""
    return {
        "confidence of the newest token": Confidence,
        "entropy bound (AdaEDL)": EntropyBound,
        "product of q": Product,
        "classifier (DISCO)": lambda at_least: Classifier(classifier.weights, at_least),
    }


def length_rows(tuning: Drafts, held: Drafts, classifier: Classifier, costs: Costs) -> list[Row]:
    """Each rule at its best threshold and K on the tuning drafts, told on those held out."""
    best = max(range(1, MOST + 1), key=lambda k: told(tuning, fixed_to(k, tuning), costs).speed)
    fixed = told(held, fixed_to(best, held), costs)
    rows = [row_of("best fixed K", fixed, fixed, held, f"K = {best}", costs)]
    for name, rule in rules_of(classifier).items():
        speeds = {}
        for threshold in (-math.inf, *THRESHOLDS):
            drafted = tuning.lengths(rule(threshold))
            for k in range(1, MOST + 1):
                speeds[threshold, k] = told(tuning, drafted.clamp(max=k), costs).speed
        threshold, k = max(speeds, key=speeds.__getitem__)
        found = told(held, held.lengths(rule(threshold)).clamp(max=k), costs)
        rows.append(row_of(name, found, fixed, held, f"at least {threshold:g}, K = {k}", costs))
    known = max((oracle(held, costs, k) for k in range(1, MOST + 1)), key=lambda one: one.speed)
    return [*rows, row_of("oracle", known, fixed, held, "", costs)]


def row_of(name: str, found: Told, fixed: Told, drafts: Drafts, setting: str, costs: Costs) -> Row:
    """With the 95 % interval of the gain over a fixed K, of resampled documents."""
    bootstrap = Bootstrap(drafts.documents.tolist(), seed=0)
    tokens, cost, tokens_of_fixed, cost_of_fixed = (
        bootstrap.resamples @ bootstrap.by_document(part[:, None])
        for part in (found.tokens, found.cost, fixed.tokens, fixed.cost)
    )
    gains = (tokens / cost) / (tokens_of_fixed / cost_of_fixed)
    return {
        "part": "length",
        "name": name,
        "costs": costs.name,
        "setting": setting,
        "speed": found.speed,
        "accepted_per_pass": float((found.tokens - 1).sum() / found.passes.sum()),
        "drafted": float(found.passes.mean()),
        "gain": [
            found.speed / fixed.speed,
            *gains.quantile(torch.tensor([0.025, 0.975]).double()).tolist(),
        ],
    }


def cascades(pair: ModelPair, pruned: Method, length: int) -> dict[str, Proposer]:
    """Each drafter alone, and what may draft for the whole one."""

    def over(inner: Proposer) -> Cascade:
        return Cascade(
            inner,
            counted(pair, Method.whole(pair)),
            Method.whole(pair).drafter.affinity,
            draft_length=length,
        )

    def small() -> DrafterChain:
        return chain_of(pair, pruned, min(length - 1, 3))

    drafter = pruned.drafter
    smallest = Cascade(
        NGrams(draft_length=3),
        counted(pair, pruned),
        drafter.affinity,
        draft_length=min(length - 1, 3),
        dynamic_tokens=drafter.dynamic_tokens,
    )
    return {
        "the drafter alone": chain_of(pair, Method.whole(pair), length),
        "the pruned drafter alone": chain_of(pair, pruned, length),
        "n-grams draft for it": over(NGrams(draft_length=length - 1)),
        "the pruned drafter drafts for it": over(small()),
        "n-grams for the pruned, that for it": over(smallest),
    }


def cascade_runs(
    pair: ModelPair, pruned: Method, prompts: list[list[int]], tokens: int
) -> list[Row]:
    """Tokens, passes and accepted drafts of each cascade at each K."""
    runs = []
    for length in LENGTHS:
        for name, proposer in cascades(pair, pruned, length).items():
            target = counted(pair, None)
            decoder = SpeculativeDecoder(target, proposer=proposer)
            _, counts, _ = decoder.generate(prompts, max_new_tokens=tokens, seeds=1)
            inner = getattr(proposer, "inner", None)
            runs.append(
                {
                    "name": name,
                    "K": length,
                    "tokens": counts.tokens,
                    "accepted": sum(counts.accepted),
                    "target": target,
                    "drafter": getattr(proposer, "drafter"),  # noqa: B009  of both kinds
                    "pruned": getattr(inner, "drafter", None),
                }
            )
            print(f"{name}, K = {length}: {counts.mean_accepted_length:.2f} accepted")
    return runs


def cascade_rows(runs: list[Row], costs: Costs) -> list[Row]:
    """The best K of each."""
    rows: dict[str, Row] = {}
    for run in runs:
        of_drafter = costs.pruned if run["name"] == "the pruned drafter alone" else costs.drafter
        cost = run["target"].cost(costs.target) + run["drafter"].cost(of_drafter)
        if run["pruned"] is not None:
            cost += run["pruned"].cost(costs.pruned)
        row = {
            "part": "cascade",
            "name": run["name"],
            "costs": costs.name,
            "setting": f"K = {run['K']}",
            "speed": run["tokens"] / cost,
            "accepted_per_pass": run["accepted"] / run["drafter"].passes.total(),
        }
        if row["speed"] > rows.get(run["name"], {"speed": 0})["speed"]:
            rows[run["name"]] = row
    return list(rows.values())


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    quiet()
    torch.set_num_threads(1)
    pair = load_shipped()
    settings = Settings(keep=(KEEP,), temperature=TEMPERATURE)
    with Stages() as stages:
        windows = windows_of(pair.tokenizer, training_files(), options.positions, 384)
        material = calibrate(pair, windows, settings, stages.each)
    pruning = pruned_to(KEEP, material, settings)
    pruned = pruning.method(RECOMMENDED, TEMPERATURE)
    classifier = fit_classifier(
        places_of(material.recording.samples, pruned.drafter, pair.drafter_head, TEMPERATURE)
    )
    tuning, held = (
        drafts_after(
            pair, pruned, windows_of(pair.tokenizer, files, CONTEXT * count, CONTEXT), seed
        )
        for files, count, seed in (
            (training_files(), options.contexts, 1 << 20),
            (held_out_files(), 2 * options.contexts, 2 << 20),
        )
    )
    prompts = [prompt.ids for prompt in held_out_prompts(pair.tokenizer)][: options.prompts]
    runs = cascade_runs(pair, pruned, prompts, options.tokens)
    own, seconds = measured_costs(pair, pruned, prompts[0])
    rows = []
    for costs in all_costs(own):
        rows += length_rows(tuning, held, classifier, costs) + cascade_rows(runs, costs)
    chosen = calibrate_length(
        pruning.samples,
        pruned.drafter,
        pair.drafter_head,
        TEMPERATURE,
        draft_cost=float(own.pruned[0]),
        most=MOST,
    )
    for row in rows:
        print({name: row[name] for name in ("costs", "name", "setting", "speed")}, row.get("gain"))
    about: Row = {"temperature": TEMPERATURE, "keep": KEEP, "contexts": len(held.accepted)}
    about |= {"prompts": len(prompts), "tokens": options.tokens}
    about |= {"documents": len(held.documents.unique())}
    about |= {"target_seconds": seconds, "chosen": str(chosen)}
    about |= {name: getattr(own, name).tolist() for name in ("target", "drafter", "pruned")}
    write_found(options.output, **about, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.lengths_and_cascades", description=__doc__)
    add = command.add_argument
    add("--positions", type=natural, default=6144, metavar="N", help="to calibrate (%(default)s)")
    add("--contexts", type=natural, default=384, metavar="N", help="to tune on (%(default)s)")
    add("--prompts", type=natural, default=42, metavar="N", help="(%(default)s)")
    add("--tokens", type=natural, default=64, metavar="N", help="for each prompt (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
