"""SGLang's `eagle_sample` with `rdk::verify` in place of its sampling kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .chain import verify_chain
from .drafting import DraftWorker, seeds_of


def eagle_sample(
    worker: DraftWorker,
    original: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None,
    *,
    watermark_state: Any = None,
    watermark_full_mask: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace SGLang's, for chains.

    Penalties, logit biases and grammar masks are applied as SGLang does it: in place, the same for
    all rows of a request, with its own functions. A draft that the grammar forbids stays where it
    is, and is rejected.

    Returns:
        `predict [bs * draft_token_num]`, how many tokens each request gets, `[bs]`, and
        `accept_index [bs, draft_token_num]`, all int32.
    """
    if batch.forward_mode.is_idle():
        empty: tuple[Tensor, Tensor, Tensor] = original(
            verify_input, batch, logits_output, grammar_mask
        )
        return empty
    sampling, nodes = batch.sampling_info, verify_input.draft_token_num
    logits = logits_output.next_token_logits
    _process(logits, sampling, nodes, grammar_mask)
    retrieve_index = verify_input.retrieve_index
    predict, accept_index, correct = verify_chain(
        logits,
        verify_input.draft_token.reshape(-1, nodes),
        retrieve_index,
        batch.seq_lens,
        sampling.temperatures,
        sampling.top_ks,
        seeds_of(sampling.sampling_seed, batch.seq_lens),
        worker.arena,
        req_pool_indices=batch.req_pool_indices,
        method=worker.method,
        top_k=sampling.top_ks if sampling.need_top_k_sampling else None,
        top_p=sampling.top_ps if sampling.need_top_p_sampling else None,
        min_p=sampling.min_ps if sampling.need_min_p_sampling else None,
    )
    # A row of NaN, or where the grammar allows nothing, has no token. SGLang needs one: token 0.
    last = correct.long()[:, None]
    accept_index = accept_index.scatter(1, last, retrieve_index.gather(1, last).int())
    return predict, correct + 1, accept_index


def _process(logits: Tensor, sampling: Any, nodes: int, grammar_mask: Any) -> None:
    from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
    from sglang.srt.utils.async_probe import sanitize_nan_logits

    sanitize_nan_logits(logits, "rdk_cuda: the target's logits")
    if sampling.acc_additive_penalties is not None:
        logits.add_(sampling.acc_additive_penalties.repeat_interleave(nodes, dim=0))
    if sampling.acc_scaling_penalties is not None:
        apply_scaling_penalties(
            logits, sampling.acc_scaling_penalties.repeat_interleave(nodes, dim=0)
        )
    if sampling.logit_bias is not None:
        logits.add_(sampling.logit_bias.repeat_interleave(nodes, dim=0))
    if grammar_mask is not None:
        grammar_mask.apply(logits)
