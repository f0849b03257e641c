"""The schemas of torch.ops.rdk.*, docs/design.md section 4, for type checkers."""

from torch import Tensor

def redistribute(
    draft_logits: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    row_top: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor: ...
def draft(
    draft_logits: Tensor,
    temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    row_offsets: Tensor,
    row_targets: Tensor,
    row_cdf: Tensor,
    row_top: Tensor,
    spread: Tensor,
    spread_cdf: Tensor,
    prior_cdf: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def verify(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_stats: Tensor | None,
    draft_rows: Tensor | None,
    draft_token_ids: Tensor,
    draft_offsets: Tensor,
    target_temperature: Tensor,
    draft_temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    max_draft: int,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    allowed: Tensor | None = None,
    logprobs: int = 0,
    method: int = 0,
) -> tuple[Tensor, Tensor, Tensor]: ...
def verify_tree(
    target_logits: Tensor,
    tree_token_ids: Tensor,
    parents: Tensor,
    tree_offsets: Tensor,
    temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    max_depth: int,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
def gather_logits(
    hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None = None
) -> Tensor: ...
def step_keys(seeds: Tensor, positions: Tensor) -> Tensor: ...
