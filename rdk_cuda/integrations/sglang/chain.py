"""SGLang's verification of a chain on `rdk::verify`, its layouts in and out.

Written against sgl-project/sglang on GitHub, without importing it. In `python/sglang/`:

- `srt/speculative/eagle_utils.py` at commit 003ddbc, `eagle_sample`;
- `kernels/ops/speculative/reject_sampling.py` at f60f793, `chain_speculative_sampling_triton`,
  whose place this takes;
- `srt/speculative/eagle_info.py` at 0007d13, `EagleVerifyInput`;
- `srt/speculative/eagle_worker_v2.py` at 006b0e3 and `srt/sampling/sampling_params.py` at 00c17ca.

`verify_chain` is for chains, `--speculative-eagle-topk 1`. SGLang needs a draft distribution over
the target's vocabulary (`draft_probs`). Here the drafter's own logits are enough, kept in a
`DraftArena` with the slots of `req_pool_indices`.

One rule keeps the output lossless (DESIGN section 5): never shorten a draft because of its tokens.
Where a grammar forbids one, leave it in and set the target's logit to `-inf`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..._ops.inputs import check_tensor
from ...functional import Method
from ..draft_arena import DraftArena


class ChainVerified(NamedTuple):
    """The outputs of SGLang's verification kernels.

    Attributes:
        predict: `[bs * draft_token_num]` int32: at the place of a node, the token decided after
            it; 0 where none was.
        accept_index: `[bs, draft_token_num]` int32, the places of the newest token and of the
            accepted drafts, then -1.
        num_correct_drafts: `[bs]` int32, accepted drafts (`accept_token_num` of the kernels).
    """

    predict: Tensor
    accept_index: Tensor
    num_correct_drafts: Tensor


def temperatures_of(temperatures: Tensor, top_ks: Tensor) -> Tensor:
    """Return `[bs]` float32 for `DraftArena.draft`: 0, greedy, where SGLang has top-k 1.

    Args:
        temperatures: `[bs, 1]` or `[bs]` float32. top_ks: `[bs]`.
    """
    return torch.where(top_ks <= 1, 0.0, temperatures.flatten())


def verify_chain(
    next_token_logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    seq_lens: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    sampling_seed: Tensor,
    arena: DraftArena,
    *,
    req_pool_indices: Tensor | None,
    method: Method = "token",
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> ChainVerified:
    """Do `eagle_sample`'s sampling branch, from its logits to `predict` and `accept_index`.

    Args:
        next_token_logits: `[bs * draft_token_num, V_t]`, not divided by the temperature, `-inf`
            where a grammar forbids a token.
        candidates: `[bs, draft_token_num]`, the newest token of each request, then its drafts as
            target ids; -1 where none was drafted.
        retrieve_index: `[bs, draft_token_num]`, the place of each node in `predict`.
        seq_lens: `[bs]`, the length of each sequence without its newest token and its drafts, which
            is the newest token's position.
        temperatures, top_ks: as in `temperatures_of`.
        sampling_seed: `[bs]` int64, a seed for each request, as given to `DraftArena.draft`.
            (SGLang has none where its sampling is not deterministic: draw one when a request
            arrives.)
        arena: what was drafted from.
        req_pool_indices: `[bs]`, each request's slot there; None: no draft has a distribution.
        method: of `rdk_cuda.verify`.
        top_k, top_p, min_p: `[bs]` int32, float32 and float32, what the target's rows are cut off
            by (DESIGN section 4, "Truncation"); None: by nothing. SGLang renormalises
            probabilities by the first two, and ignores min-p where it speculates.

    Raises:
        ValueError, RuntimeError: naming the argument that does not fit, or that of `rdk::verify`.

    Example:
        >>> import torch
        >>> from rdk_cuda import Affinity, Vocabulary
        >>> arena = DraftArena(Affinity.intersection(Vocabulary.identity(5)), 0, draft_length=2)
        >>> verify_chain(
        ...     torch.eye(5)[[1, 2, 3]], torch.tensor([[0, 1, 4]]), torch.tensor([[0, 1, 2]]),
        ...     torch.tensor([7]), torch.ones(1, 1), torch.tensor([1]), torch.tensor([3]), arena,
        ...     req_pool_indices=None)
        ChainVerified(predict=tensor([1, 2, 0], dtype=torch.int32), \
accept_index=tensor([[ 0,  1, -1]], dtype=torch.int32), \
num_correct_drafts=tensor([1], dtype=torch.int32))
    """
    name = "rdk_cuda.integrations.sglang.verify_chain"
    check_tensor(f"{name}: candidates", candidates, "integers", "bs", "draft_token_num")
    requests, nodes = candidates.shape
    check_tensor(f"{name}: retrieve_index", retrieve_index, "integers", requests, nodes)
    slots = req_pool_indices
    offsets = torch.arange(requests + 1, dtype=torch.int32, device=arena.device) * (nodes - 1)
    places = torch.arange(nodes - 1, device=arena.device)
    rows = None if slots is None else arena.row_of(slots[:, None], places).flatten().int()
    tokens, accepted, _ = arena.verify(
        next_token_logits,
        candidates[:, 1:].flatten(),
        offsets,
        rows,
        temperature=temperatures_of(temperatures, top_ks),
        seeds=sampling_seed,
        positions=seq_lens.long() + 1,
        max_draft=nodes - 1,
        method=method,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )
    end = requests * nodes
    decided = (tokens >= 0) & (retrieve_index >= 0) & (retrieve_index < end)
    # Undecided places are written to one more entry, which is cut off.
    entries = torch.where(decided, retrieve_index, end)
    predict = torch.zeros(end + 1, dtype=torch.int32, device=arena.device)
    predict.scatter_(0, entries.flatten().long(), tokens.flatten().int())
    return ChainVerified(predict[:-1], torch.where(decided, retrieve_index, -1).int(), accepted)
