"""From a recording to calibrated drafters: the tokens to keep, the methods, the choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafter import FullHead
from ..dynamic_tokens import SuccessorCounts
from ..vocabulary import Vocabulary
from .lengths import CalibratedLength, calibrate_length
from .methods import PRUNED, RECOMMENDED, Material, Method, Options, Pruning
from .recording import Each, Recording
from .trees import ExpectedTree, expected_tree

_SUCCESSOR_TARGETS = 256  # likeliest next tokens of a sample that count as successors

SCORES = ("probability", "frequency", "variance")
"""How tokens to keep are chosen: by mean target probability, count, or its variance."""


class Setting(NamedTuple):
    """What one drafter is calibrated for: a share of the vocabulary, and a temperature."""

    keep: float
    temperature: float


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A pruned drafter for one setting.

    Attributes:
        plain: without redistribution.
        method: the best of what was tried, `RECOMMENDED`.
        coverage: the share of the target's mean probability that lies on kept tokens.
        length: when its drafts should end, if it was asked for.
        tree: what a tree in place of a chain is expected to gain, if it was asked for.
    """

    setting: Setting
    plain: Method
    method: Method
    coverage: float
    length: CalibratedLength | None = None
    tree: ExpectedTree | None = None


def calibrate(
    recording: Recording,
    full_head: FullHead,
    documents: Sequence[Sequence[int]],
    settings: Iterable[Setting],
    *,
    keep_by: str = SCORES[0],
    always: Sequence[int] | Tensor = (),
    kept: Vocabulary | None = None,
    options: Options | None = None,
    dtype: torch.dtype | None = None,
    draft_cost: float | None = None,
    each: Each | None = None,
) -> list[Calibrated]:
    """A calibrated drafter for each setting, from one recording of both models.

    Args:
        recording: of the calibration text, with the temperature of every setting.
        full_head: the drafter's own, `[V_t, d]` and `[V_t]` or None.
        documents: token ids of all calibration text, also what the models did not read.
        settings: in any order; the drafters are grouped by temperature.
        keep_by: one of `SCORES`.
        always: target ids that are kept whatever their score (`indispensable_tokens`).
        kept: these tokens, in place of those with the best scores.
        dtype: what the small heads will be saved in. Their numbers are rounded to it, so that what
            is measured is what is saved. None: as in the full head.
        draft_cost: the time of a drafter's pass in passes of the target; also find when drafts
            should end (`calibrate_length`), and what a tree gains (`expected_tree`).
        each: shows the progress.

    Raises:
        ValueError: a temperature that was not recorded, an unknown score, or a share that has no
            room for `always`.
    """
    settings, each = list(settings), each or (lambda items, description: items)
    drafters = []
    for temperature in dict.fromkeys(setting.temperature for setting in settings):
        alone = recording.at(temperature)
        counts = successor_counts(each(documents, "Calibrating: counting successors"), alone)
        material = Material(alone, full_head, counts)
        for setting in settings:
            if setting.temperature != temperature:
                continue
            vocabulary = kept
            if vocabulary is None:
                vocabulary = kept_tokens(alone, documents, setting.keep, keep_by, always)
            pruning = Pruning(material, vocabulary, options)
            plain, method = (
                _rounded(pruning.method(name, temperature), dtype)
                for name in each((PRUNED, RECOMMENDED), "Calibrating: offsets")
            )
            coverage = vocabulary.coverage(pruning.mean_probs(temperature))
            length = tree = None
            if draft_cost is not None:
                of = pruning.samples, method.drafter, full_head, temperature
                length = calibrate_length(*of, draft_cost=draft_cost)
                tree = expected_tree(*of, draft_cost=draft_cost)
            drafters.append(Calibrated(setting, plain, method, coverage, length, tree))
    return drafters


def kept_tokens(
    recording: Recording,
    documents: Iterable[Sequence[int]],
    keep: float,
    keep_by: str = SCORES[0],
    always: Sequence[int] | Tensor = (),
) -> Vocabulary:
    """The tokens with the best scores: a share `keep` of the vocabulary, `always` among them.

    The recording is at one temperature; the documents, token ids, are for the frequencies.
    """
    if keep_by not in SCORES:
        raise ValueError(f"kept_tokens: keep_by is {keep_by!r}; needs one of {', '.join(SCORES)}")
    (temperature,), size = recording.temperatures, recording.counts.numel()
    if keep_by == "frequency":
        ids = torch.tensor([id for ids in documents for id in ids], dtype=torch.int64, device="cpu")
        scores = ids.bincount(minlength=size)
    elif keep_by == "variance":
        scores = recording.variance_at(temperature)
    else:
        scores = recording.mean_probs_at(temperature)
    return Vocabulary.most_likely(scores, max(1, round(keep * size)), always=always)


def successor_counts(documents: Iterable[Sequence[int]], recording: Recording) -> SuccessorCounts:
    """Which token follows which: in a text, and by the target's probabilities on the samples.

    Args:
        documents: token ids. Give all the text there is, since no model reads it here.
    """
    counts = SuccessorCounts(recording.counts.numel())
    for document in documents:
        counts.add(document)
    samples = recording.samples
    samples = samples.select(samples.contexts[:, -1] >= 0)
    if len(samples):
        probs = samples.target_probs(samples.temperatures[0])[:, :_SUCCESSOR_TARGETS]
        targets = samples.targets[:, :_SUCCESSOR_TARGETS]
        counts.add_probs(samples.contexts[:, -1], targets, probs)
    return counts


def _rounded(method: Method, dtype: torch.dtype | None) -> Method:
    """With a head of numbers that `dtype` has, in the dtype that it had."""
    if dtype is None:
        return method
    drafter = method.drafter
    return replace(method, drafter=drafter.in_dtype(dtype).in_dtype(drafter.weight.dtype))
