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

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.model_executor.layers.utils import apply_penalties
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p


class LogitRows(NamedTuple):
    """Which request a row of logits belongs to, and which place in it.

    Attributes:
        counts: how many rows each request has, at least 1.
        offsets: `[B + 1]` int64, where each request's rows begin, and the number of all rows.
        request: `[R]` int64, the request of each row.
        place: `[R]` int64, how many drafts come before the row.
    """

    counts: list[int]
    offsets: Tensor
    request: Tensor
    place: Tensor

    @classmethod
    def of(cls, num_drafts: Sequence[int], device: torch.device) -> LogitRows:
        """Make those of requests with these numbers of drafts."""
        counts = [drafts + 1 for drafts in num_drafts]
        offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int64, device=device)
        request = torch.arange(len(counts), device=device).repeat_interleave(
            offsets.diff(), output_size=sum(counts)
        )
        place = torch.arange(len(request), device=device) - offsets[request]
        return cls(counts, offsets, request, place)

    def places(self, requests: Iterable[int]) -> list[tuple[int, int, int]]:
        """List the rows of these requests: each one's number, its request, and its place there."""
        first = [0, *accumulate(self.counts)]
        return [(first[b] + j, b, j) for b in requests for j in range(self.counts[b])]


_LIMITS = torch.int32, torch.float32, torch.float32  # top-k, top-p, min-p


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


def add_processors(logitsprocs: Any, vllm_config: Any, device: torch.device) -> None:
    """Give a batch the processors that vLLM leaves out where it speculates: min-p, logit bias."""
    kinds = (*logitsprocs.argmax_invariant, *logitsprocs.non_argmax_invariant)
    pinned = device.type != "cpu"
    if not any(isinstance(kind, MinPLogitsProcessor) for kind in kinds):
        logitsprocs.argmax_invariant.append(MinPLogitsProcessor(vllm_config, device, pinned))
    if not any(isinstance(kind, LogitBiasLogitsProcessor) for kind in kinds):
        bias = LogitBiasLogitsProcessor(vllm_config, device, pinned)
        logitsprocs.non_argmax_invariant.append(bias)


def processed(
    logits: Tensor,
    sampling: Any,
    temperature: Tensor,
    rows: LogitRows,
    drafts: Tensor,
    outputs: Callable[[int], Tensor],
    truncate: bool,
) -> Processed:
    """Apply the requests' parameters to the target's rows.

    Args:
        logits: `[R, V_t]`, with `-inf` where a grammar forbids a token. They are not changed.
        sampling: vLLM's `SamplingMetadata`.
        temperature: `[B]` float32, 0 for greedy requests.
        rows: of the requests of `sampling`.
        drafts: `[N]`, packed.
        outputs: of `Requests`. Called only where a penalty reads them.
        truncate: whether the rows themselves are truncated, by vLLM's functions.
    """
    steps = [
        *_masks(sampling, rows),
        *_biases(sampling, rows),
        *_penalties(sampling, rows, drafts, outputs),
    ]
    limits = _limits(sampling)
    limited = any(limit is not None for limit in limits)
    truncate = truncate and limited
    own = logits.to(torch.float32, copy=True) if steps or truncate else logits
    for step in steps:
        own = step(own)
    if not limited:
        return Processed(own, temperature)
    batch = len(rows.counts)
    limits = tuple(
        None if limit is None else limit[:batch].to(dtype).contiguous()
        for limit, dtype in zip(limits, _LIMITS, strict=True)
    )
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


def needs_whole_rows(sampling: Any) -> bool:
    """Whether a request changes rows of logits, cuts them off, or asks for log-probabilities."""
    return (
        sampling.allowed_token_ids_mask is not None
        or bool(sampling.bad_words_token_ids)
        or bool(_biasing(sampling))
        or not sampling.no_penalties
        or any(limit is not None for limit in _limits(sampling))
        or sampling.max_num_logprobs is not None
        or bool(sampling.logprob_token_ids)
    )


def _limits(sampling: Any) -> tuple[Tensor | None, ...]:
    """Top-k, top-p and min-p; of greedy requests alone, none."""
    if sampling.all_greedy:
        return (None,) * len(_LIMITS)
    return sampling.top_k, sampling.top_p, _min_p(sampling)


def _min_p(sampling: Any) -> Tensor | None:
    """`[B]`, None where no request has it."""
    for processor in sampling.logitsprocs.argmax_invariant:
        if isinstance(processor, MinPLogitsProcessor) and processor.min_p_count:
            min_p: Tensor = processor.min_p[:, 0]
            return min_p
    return None


def _masks(sampling: Any, rows: LogitRows) -> list[Any]:
    steps: list[Any] = []
    if sampling.allowed_token_ids_mask is not None:
        mask = sampling.allowed_token_ids_mask
        steps.append(lambda logits: logits.masked_fill_(mask[rows.request], -torch.inf))
    if sampling.bad_words_token_ids:
        words = sampling.bad_words_token_ids
        places = rows.places(words)
        longest = max(len(word) for own in words.values() for word in own)
        ends = {b: sampling.output_token_ids[b][-longest:] for b in words}
        drafted = sampling.spec_token_ids or {b: [] for b in words}

        def without_bad_words(logits: Tensor) -> Tensor:
            before = {row: [*ends[b], *drafted[b][:j]] for row, b, j in places}
            apply_bad_words(logits, {row: words[b] for row, b, _ in places}, before)
            return logits

        steps.append(without_bad_words)
    return steps


def _biases(sampling: Any, rows: LogitRows) -> list[Any]:
    steps: list[Any] = []
    for processor in _biasing(sampling):
        if isinstance(processor, MinTokensLogitsProcessor):
            # As if every row were a draft: so a stop token is allowed after enough drafts, too.
            def at_least(logits: Tensor, processor: Any = processor) -> Tensor:
                result: Tensor = processor.apply_with_spec_decode(logits, rows.counts)
                return result

            steps.append(at_least)
        else:
            steps.append(lambda logits, processor=processor: _biased(logits, processor, rows))
    return steps


def _biasing(sampling: Any) -> list[Any]:
    return [
        processor
        for processor in sampling.logitsprocs.non_argmax_invariant
        if (
            processor.min_toks
            if isinstance(processor, MinTokensLogitsProcessor)
            else processor.biases
        )
    ]


def _biased(logits: Tensor, processor: Any, rows: LogitRows) -> Tensor:
    places = [
        (row, token, bias)
        for row, request, _ in rows.places(processor.biases)
        for token, bias in processor.biases[request].items()
    ]
    if places:
        row, token, bias = zip(*places, strict=True)
        at = (
            torch.tensor(row, dtype=torch.int64, device=logits.device),
            torch.tensor(token, dtype=torch.int64, device=logits.device),
        )
        logits[at] += torch.tensor(bias, dtype=torch.float32, device=logits.device)
    return logits


def _penalties(
    sampling: Any, rows: LogitRows, drafts: Tensor, outputs: Callable[[int], Tensor]
) -> list[Any]:
    if sampling.no_penalties:
        return []

    def penalized(logits: Tensor) -> Tensor:
        padding = logits.shape[1]  # an id that vLLM does not count
        own = torch.nn.functional.pad(drafts.to(logits.device), (0, max(rows.counts)))
        steps = torch.arange(max(rows.counts) - 1, device=logits.device)
        # Of request b, draft j is number `offsets[b] - b + j`.
        first = rows.offsets[:-1] - torch.arange(len(rows.counts), device=logits.device)
        drafted = own[first[:, None] + steps][rows.request]
        drafted = drafted.masked_fill(steps >= rows.place[:, None], padding)
        before = outputs(padding).to(logits.device)[rows.request]
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
