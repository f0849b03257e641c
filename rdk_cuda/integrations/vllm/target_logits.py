"""A request's parameters, applied by vLLM's own functions to the target's rows of logits.

vLLM's `Sampler` has one row for each request. Here a request has one for each of its drafts and one
more, and what a row may depend on is what came before it: the output so far and the drafts before
that row. The order of the steps is that of vLLM's `Sampler`.

`processed` is the one place where parameters become logits. It returns what `rdk::verify` takes.
Min-p, top-k and top-p come last in vLLM's order, which is that of `rdk::verify`, so it gets them as
they are. Only processed log-probabilities, which list the likeliest tokens of a row, need rows that
are truncated beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.model_executor.layers.utils import apply_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from ..._ops.inputs import upload
from .requests import Requests


class LogitRows:
    """Which request a row of logits belongs to, and which place in it.

    Args:
        num_drafts: of each request. device: that of the rows.

    Attributes:
        counts: how many rows each request has, at least 1.
        offsets: `[B]` int32, where each request's rows begin.
        request: `[R]` int32, the request of each row.
        place: `[R]` int32, how many drafts come before the row.
    """

    def __init__(self, num_drafts: Sequence[int], device: torch.device) -> None:
        self.counts = [drafts + 1 for drafts in num_drafts]
        self._device = device

    @cached_property
    def _uploaded(self) -> tuple[Tensor, ...]:
        """Made when a row's request is asked for: few steps do."""
        ends = np.cumsum(self.counts)
        first, request = ends - self.counts, np.arange(len(ends)).repeat(self.counts)
        parts = first, request, np.arange(len(request)) - first[request]
        own = upload(np.concatenate(parts).astype(np.int32), self._device)
        return tuple(torch.split(own, [len(part) for part in parts]))

    offsets = property(lambda self: self._uploaded[0])
    request = property(lambda self: self._uploaded[1])
    place = property(lambda self: self._uploaded[2])

    def places(self, requests: Iterable[int]) -> list[tuple[int, int, int]]:
        """List the rows of these requests: each one's number, its request, and its place there."""
        first = [0, *accumulate(self.counts)]
        return [(first[b] + j, b, j) for b in requests for j in range(self.counts[b])]


class Processed(NamedTuple):
    """Rows for `rdk::verify`.

    Attributes:
        logits: `[R, V_t]`. temperature: `[B]` float32, what they are still to be divided by.
        top_k: `[B]` int32; top_p, min_p: `[B]` float32. The limits that are still to be applied.
    """

    logits: Tensor
    temperature: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None


def processed(
    logits: Tensor,
    sampling: Any,
    params: Sequence[Any],
    temperature: Tensor,
    rows: LogitRows,
    drafts: Tensor,
    requests: Requests,
    truncate: bool,
) -> Processed:
    """Apply the requests' parameters to the target's rows.

    Args:
        logits: `[R, V_t]`, with `-inf` where a grammar forbids a token. They are not changed.
        sampling: vLLM's `SamplingMetadata`. params: each request's `SamplingParams`, for what vLLM
            leaves out where it speculates: min-p, logit bias, and for `min_tokens`.
        temperature: `[B]` float32, 0 for greedy requests.
        rows: of the requests of `sampling`.
        drafts: `[N]`, packed.
        requests: what these have put out is asked for where penalties or `min_tokens` read it.
        truncate: whether the rows themselves are truncated, by vLLM's functions.
    """
    steps = [
        *_masks(sampling, rows),
        *_minimums(params, rows, requests),
        *_biases(params, rows),
        *_penalties(sampling, rows, drafts, requests),
    ]
    limits = _limits(sampling, params, logits.device)
    limited = any(limit is not None for limit in limits)
    truncate = truncate and limited
    own = logits.to(torch.float32, copy=True) if steps or truncate else logits
    for step in steps:
        own = step(own)
    if not limited:
        return Processed(own, temperature)
    limits = tuple(None if limit is None else limit[: len(rows.counts)] for limit in limits)
    if not truncate:
        return Processed(own, temperature, *limits)
    return Processed(_truncated(own, limits, temperature, rows), (temperature != 0).float())


def _truncated(
    logits: Tensor, limits: tuple[Tensor | None, ...], temperature: Tensor, rows: LogitRows
) -> Tensor:
    """Divided by the temperature, and `-inf` where min-p, top-k or top-p leave a token out."""
    top_k, top_p, min_p = (None if limit is None else limit[rows.request] for limit in limits)
    scale = torch.where(temperature == 0, 1.0, temperature)[rows.request]
    logits = logits.div_(scale[:, None])
    if min_p is not None:
        probs = logits.softmax(-1)
        least = probs.amax(-1, keepdim=True) * min_p[:, None]
        logits.masked_fill_(probs < least, -torch.inf)
    truncated: Tensor = apply_top_k_top_p(logits, top_k, top_p)
    return truncated


def needs_whole_rows(sampling: Any, params: Sequence[Any]) -> bool:
    """Whether a request changes rows of logits, cuts them off, or asks for log-probabilities."""
    return (
        sampling.allowed_token_ids_mask is not None
        or bool(sampling.bad_words_token_ids)
        or any(own.logit_bias or own.min_p or own.min_tokens for own in params)
        or not sampling.no_penalties
        or (not sampling.all_greedy and (sampling.top_k is not None or sampling.top_p is not None))
        or sampling.max_num_logprobs is not None
        or bool(sampling.logprob_token_ids)
    )


def _limits(
    sampling: Any, params: Sequence[Any], device: torch.device
) -> tuple[Tensor | None, ...]:
    """Top-k, top-p and min-p; of greedy requests alone, none."""
    if sampling.all_greedy:
        return None, None, None
    min_p = np.array([own.min_p for own in params], dtype=np.float32)
    return sampling.top_k, sampling.top_p, upload(min_p, device) if min_p.any() else None


def _masks(sampling: Any, rows: LogitRows) -> list[Any]:
    steps: list[Any] = []
    if sampling.allowed_token_ids_mask is not None:
        mask = sampling.allowed_token_ids_mask
        steps.append(lambda logits: logits.masked_fill_(mask[rows.request], -torch.inf))
    if sampling.bad_words_token_ids:
        words = sampling.bad_words_token_ids
        longest = max(len(word) for own in words.values() for word in own)
        ends = {b: sampling.output_token_ids[b][-longest:] for b in words}
        drafted = sampling.spec_token_ids or {b: [] for b in words}
        found: list[tuple[int, int, float]] = []
        for row, b, j in rows.places(words):
            before = [*ends[b], *drafted[b][:j]]
            for *begin, end in words[b]:
                if before[max(0, len(before) - len(begin)) :] == begin:
                    found.append((row, end, -torch.inf))
        steps.append(lambda logits: _added(logits, found))
    return steps


def _minimums(params: Sequence[Any], rows: LogitRows, requests: Requests) -> list[Any]:
    """As if every row were a draft: so a stop token is allowed after enough drafts, too."""
    delaying = [b for b, own in enumerate(params) if own.min_tokens]
    if not delaying:
        return []
    lengths = requests.num_outputs().tolist()
    found = [
        (row, token, params[b].structured_outputs is not None)
        for row, b, j in rows.places(delaying)
        if lengths[b] + j < params[b].min_tokens
        for token in params[b].all_stop_token_ids
    ]
    return [lambda logits: _without(logits, found)] if found else []


def _without(logits: Tensor, found: list[tuple[int, int, bool]]) -> Tensor:
    """The logits without a token each; with it where its row has a grammar that leaves no other."""
    row, token, has_grammar = upload(np.array(found), logits.device).unbind(1)
    before = logits[row, token]
    logits[row, token] = torch.full_like(before, -torch.inf)
    if any(of for *_, of in found):
        alone = (logits.amax(1) == -torch.inf)[row] & has_grammar.bool()
        logits[row, token] = before.masked_fill(~alone, -torch.inf)
    return logits


def _biases(params: Sequence[Any], rows: LogitRows) -> list[Any]:
    biased = [b for b, own in enumerate(params) if own.logit_bias]
    found = [
        (row, token, bias)
        for row, b, _ in rows.places(biased)
        for token, bias in params[b].logit_bias.items()
    ]
    return [lambda logits: _added(logits, found)] if found else []


def _added(logits: Tensor, found: list[tuple[int, int, float]]) -> Tensor:
    """The logits with a value added at each row and token, these once each."""
    if found:
        row, token, value = zip(*found, strict=True)
        at = upload(np.array([row, token]), logits.device).unbind()
        logits[at] += upload(np.array(value, np.float32), logits.device)
    return logits


def _penalties(sampling: Any, rows: LogitRows, drafts: Tensor, requests: Requests) -> list[Any]:
    if sampling.no_penalties:
        return []

    def penalized(logits: Tensor) -> Tensor:
        padding = logits.shape[1]  # an id that vLLM does not count
        own = torch.nn.functional.pad(drafts.to(logits.device), (0, max(rows.counts)))
        steps = torch.arange(max(rows.counts) - 1, device=logits.device)
        # Of request b, draft j is number `offsets[b] - b + j`.
        first = rows.offsets - torch.arange(len(rows.counts), device=logits.device)
        drafted = own[first[:, None] + steps][rows.request]
        drafted = drafted.masked_fill(steps >= rows.place[:, None], padding)
        before = upload(requests.outputs(padding), logits.device)[rows.request]
        penalties = (
            sampling.presence_penalties,
            sampling.frequency_penalties,
            sampling.repetition_penalties,
        )
        result: Tensor = apply_penalties(
            logits,
            sampling.prompt_token_ids[rows.request],
            torch.cat([before, drafted], 1).long(),
            *(values[rows.request] for values in penalties),
        )
        return result

    return [penalized]
