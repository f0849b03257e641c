"""When drafts should end, from a recording: a classifier, and thresholds for given costs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...decoding.lengths import Classifier, Drafted, Length, Product, described
from ...drafter import FullHead, PrunedDrafter
from ...functional import draft
from ..errors import InputError
from ..recording import Samples, held_out_rows
from ..request import Request
from .pruning import Options
from .stage import Stage, State

# A token of a virtual one has a small q, however often it is accepted.
THRESHOLDS = (*(10.0**-power for power in range(7, 2, -1)), *(n / 50 for n in range(1, 50)))
LONGEST = 8  # drafts that are tried
LEAST_SAMPLES = 2 * LONGEST
_HELD_OUT, _PENALTY, _NEWTON_STEPS, _BLOCK = 0.2, 1e-3, 12, 256


class Places(NamedTuple):
    """Tokens that a drafter would draw at the samples, one at each.

    Attributes:
        accepted: `[n]` float64, with which probability the target accepts it: exact, up to the
            target tokens that were not recorded, which count as rejected.
        probs: `[n]`, the drawn token's q.
        features: `[n, 5]`, as in `Drafted`.
        documents: `[n]` int64.
    """

    accepted: Tensor
    probs: Tensor
    features: Tensor
    documents: Tensor

    def select(self, mask: Tensor) -> Places:
        """Those of a mask `[n]`."""
        return Places(*(part[mask] for part in self))


class CalibratedLength(NamedTuple):
    """The rule, None where a fixed K is as good; K; its gain over the best fixed K."""

    length: Length | None
    draft_length: int
    gain: float


@torch.no_grad()
def places_of(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Places:
    """Draw a token at each sample, and look its p up, at a recorded temperature or 0."""
    parts = []
    for rows in torch.arange(len(samples), device="cpu").split(_BLOCK):
        own = samples.select(rows)
        columns: dict[str, Any] = drafter.columns(full_head, own.hidden, own.contexts)
        affinity = drafter.affinity
        seen = Drafted(affinity)
        # One sequence for each sample, which begins there.
        seen.places.append(
            draft(**columns, affinity=affinity, temperature=temperature, seeds=rows, positions=0)
        )
        token, q = seen.places[0].tokens, seen.probs[:, 0]
        p = (own.target_probs(temperature) * (own.targets == token)).sum(1).double()
        ratio = p if temperature == 0 else p / q
        parts.append(Places(ratio.clamp(max=1), q, seen.features[:, 0], own.documents))
    return Places(*map(torch.cat, zip(*parts, strict=True)))


def fit_classifier(places: Places) -> Classifier:
    """Fit by Newton's method with a ridge penalty; the labels are probabilities, known exactly."""
    x, y = places.features.double(), places.accepted
    weights = x.new_zeros(x.shape[1])
    ridge = _PENALTY * len(x) * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(_NEWTON_STEPS):
        predicted = (x @ weights).sigmoid()
        slope = x.T @ (y - predicted) - ridge @ weights
        curvature = (x.T * (predicted * (1 - predicted))) @ x + ridge
        weights = weights + torch.linalg.solve(curvature, slope)
    return Classifier(tuple(weights.tolist()), 0.0)


def calibrate_length(
    samples: Samples,
    drafter: PrunedDrafter,
    full_head: FullHead,
    temperature: float,
    *,
    draft_cost: float,
    most: int = LONGEST,
) -> CalibratedLength:
    """Which rule, threshold and K up to `most` give the most tokens a second.

    Tried are fixed K, `Product` and a `Classifier` that is trained on four fifths of the documents;
    the others decide. Successive samples of a document stand for successive places of a draft.

    Args:
        temperature: a recorded one, or 0.
        draft_cost: the time of a drafter's pass in passes of the target, as measured.

    Raises:
        ValueError: a cost that is no positive number, or too few samples.
    """
    if not 0 < draft_cost < math.inf or most < 1:
        raise ValueError(
            f"calibrate_length: draft_cost is {draft_cost} and most {most}; needs a positive "
            "number and at least 1"
        )
    if len(samples) < 2 * most:
        raise ValueError(
            f"calibrate_length: there are {len(samples)} samples; needs {2 * most} at least"
        )
    places = places_of(samples, drafter, full_head, temperature)
    held = held_out_rows(places.documents, _HELD_OUT)
    judge = places.select(held) if int(held.sum()) >= 2 * most else places
    classifier = fit_classifier(places.select(~held))
    fixed = max(
        (expected_speed(judge, judge.probs, 0.0, k, draft_cost), k) for k in range(1, most + 1)
    )
    best: tuple[float, int, Length | None] = (*fixed, None)
    for scores, rule in (
        (judge.probs, Product),
        (classifier.accepted(judge.features), lambda t: Classifier(classifier.weights, t)),
    ):
        for threshold in THRESHOLDS:
            for k in range(2, most + 1):
                speed = expected_speed(judge, scores, threshold, k, draft_cost)
                if speed > best[0]:
                    best = speed, k, rule(threshold)
    return CalibratedLength(best[2], best[1], best[0] / fixed[0])


def expected_speed(
    places: Places, scores: Tensor, at_least: float, draft_length: int, draft_cost: float
) -> float:
    """Tokens in the time of a target's pass, where drafts end once `scores` multiply to less."""
    documents = places.documents.unfold(0, draft_length, 1)
    whole = documents[:, 0] == documents[:, -1]
    accepted, product = (
        part.double().unfold(0, draft_length, 1)[whole].cumprod(1)
        for part in (places.accepted, scores)
    )
    behind = torch.nn.functional.pad(product[:, :-1], (1, 0), value=torch.inf)
    drafted = behind >= at_least
    tokens = 1 + (accepted * drafted).sum(1).mean()
    return float(tokens / (1 + draft_cost * drafted.sum(1).double().mean()))


class Drafts(Stage[Request]):
    """When drafts should end, if a cost of the drafter's pass is given."""

    name = "drafts"

    def check(self, state: State[Request]) -> None:
        length, request = state.text.length, state.request
        windows = len(state.text.windows(request.positions))
        samples = windows * (length - 1)  # a drafter may not read the first
        if request.draft_cost is not None and samples < LEAST_SAMPLES:
            raise InputError(
                f"--draft-cost: {samples} positions of the text cannot tell when drafts should "
                f"end; needs {LEAST_SAMPLES}: give more text, or more --positions"
            )

    def run(self, state: State[Request]) -> list[CalibratedLength]:
        cost, found = state.request.draft_cost, list[CalibratedLength]()
        if cost is None:
            return found
        head = state.models.drafter_head
        for one in state.made["affinity"]:
            at = one.setting.temperature
            samples = state.recording.at(at).samples.spaced(Options.samples)
            found.append(calibrate_length(samples, one.method.drafter, head, at, draft_cost=cost))
        return found

    def settings(self, state: State[Request], place: int) -> dict[str, Any]:
        found = None
        if made := state.made[self.name]:
            one: CalibratedLength = made[place]
            rule = None if one.length is None else described(one.length)
            found = {"length": rule, "draft_length": one.draft_length, "gain": one.gain}
        return {self.name: found}
