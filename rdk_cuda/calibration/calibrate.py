"""From a recording to calibrated drafters: the tokens to keep, the methods, the choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..drafter import FullHead
from ..vocabulary import Vocabulary
from .material import Material, Options, successor_counts
from .methods import PRUNED, RECOMMENDED, Method, Pruning
from .recording import Each, Recording

__all__ = ["SCORES", "Calibrated", "Setting", "calibrate", "kept_tokens"]

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
    """

    setting: Setting
    plain: Method
    method: Method
    coverage: float


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
            drafters.append(Calibrated(setting, plain, method, coverage))
    return drafters


def kept_tokens(
    recording: Recording,
    documents: Iterable[Sequence[int]],
    keep: float,
    keep_by: str = SCORES[0],
    always: Sequence[int] | Tensor = (),
) -> Vocabulary:
    """The tokens with the best scores: a share `keep` of the vocabulary, `always` among them.

    Args:
        recording: at one temperature.
        documents: token ids, for the frequencies; also what the models did not read.

    Raises:
        ValueError: an unknown score, or a share that has no room for `always`.
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


def _rounded(method: Method, dtype: torch.dtype | None) -> Method:
    """With a head of numbers that `dtype` has, in the dtype that it had."""
    if dtype is None:
        return method
    drafter = method.drafter
    return replace(method, drafter=drafter.in_dtype(dtype).in_dtype(drafter.weight.dtype))
