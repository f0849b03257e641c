"""SGLang's draft worker with `rdk::draft` in place of its draws from the drafter's head.

The worker's forward passes stay SGLang's. Its head becomes the small one, and what was drawn from
is kept in a `DraftArena` with the slots of `req_pool_indices`, also where a CUDA graph draws.
SGLang carries a distribution over the target's vocabulary from draft to verification
(`draft_probs`). Here it carries one number, which nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import PrunedDrafter
from ...functional import Method
from ...vocabulary import Vocabulary
from ..draft_arena import DraftArena
from .chain import temperatures_of
from .server_options import UnsupportedConfigurationError

_Original = Callable[..., Any]
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class DraftWorker:
    """The wrappers around SGLang's `EagleDraftWorker`, of which a process has one.

    Args:
        calibrated: the drafter to serve; None for the model's own head.
        method: of `rdk_cuda.verify`.

    Attributes:
        arena: what was drawn from, once the model is loaded.
    """

    arena: DraftArena

    def __init__(self, calibrated: PrunedDrafter | None, method: Method = "token") -> None:
        self._calibrated, self.method = calibrated, method
        # For whom it drafts: `[bs]` each, slots and `seq_lens`.
        self._drafting: tuple[Tensor, Tensor] | None = None
        self._first: tuple[Tensor, Tensor, Tensor] | None = None

    def init_token_map(self, original: _Original, worker: Any) -> None:
        """Replace SGLang's: the directory is not one of its token maps."""
        worker.hot_token_id = None

    def init_lm_head(self, original: _Original, worker: Any) -> None:
        """Put in the small head, and make the arena, after SGLang's.

        Raises:
            UnsupportedConfigurationError: a model or a calibrated drafter that does not fit.
        """
        original(worker)
        model = worker.draft_runner.model
        head, processor = getattr(model, "lm_head", None), getattr(model, "logits_processor", None)
        weight = getattr(head, "weight", None)
        if processor is None or weight is None or weight.dtype not in _DTYPES:
            raise UnsupportedConfigurationError(
                f"the drafter is a {type(model).__name__}, which has "
                "no logits_processor or no lm_head whose weight is float32, float16 or bfloat16; "
                "needs a causal language model with both, whose head is not quantised"
            )
        affinity = self._fitted(worker, model, weight)
        # SGLang would map columns of the head to tokens, and tokens are drawn here.
        worker.hot_token_id = None
        self.arena = DraftArena(
            affinity, worker.req_to_token_pool.req_to_token.shape[0], worker.speculative_num_steps
        )

    def _fitted(self, worker: Any, model: Any, weight: Tensor) -> Affinity:
        target_size = int(worker.target_worker.model_config.vocab_size)
        if self._calibrated is None:
            ids = worker.hot_token_id
            if ids is None:
                ids = torch.arange(target_size, device="cpu")
            own = Affinity.intersection(Vocabulary(ids.cpu(), target_size)).to(weight.device)
            model.logits_processor.vocab_size = own.draft_size
            return own
        drafter = self._calibrated.in_dtype(weight.dtype)
        got = [drafter.affinity.target_size, drafter.weight.shape[1]]
        needs = [target_size, weight.shape[1]]
        if got != needs:
            raise UnsupportedConfigurationError(
                f"the calibrated drafter has [V_t, d] = {got}; the served models have {needs}"
            )
        rows = drafter.weight.to(weight.device)
        model.lm_head = torch.nn.Module()
        model.lm_head.weight = torch.nn.Parameter(rows, requires_grad=False)
        model.logits_processor.vocab_size = drafter.affinity.draft_size
        return drafter.affinity.to(weight.device)

    def capture_one_shape(
        self, original: _Original, runner: Any, *arguments: Any, **options: Any
    ) -> Any:
        """Wrap SGLang's, whose graph reads `draft_probs` as wide as the vocabulary."""
        probs = runner.buffers.draft_probs
        if probs is not None and probs.shape[1] != 1:
            runner.buffers.draft_probs = probs.new_zeros(probs.shape[0], 1)
        return original(runner, *arguments, **options)

    def draft_extend(
        self, original: _Original, worker: Any, batch: Any, *arguments: Any, **options: Any
    ) -> Any:
        """Wrap SGLang's for prefills, which draws by `renorm_draft_probs` and `fast_sample`.

        And that for decoding, which draws by `sample_draft_proposal`.
        """
        with self._of(batch.req_pool_indices, batch.seq_lens):
            return original(worker, batch, *arguments, **options)

    def draft_forward(self, original: _Original, worker: Any, forward_batch: Any) -> Any:
        """Wrap SGLang's, which draws by `sample_draft_proposal` unless all requests are greedy.

        `rdk::draft` draws for greedy ones, too: the head's columns are not the target's tokens.
        """
        if forward_batch.forward_mode.is_idle():
            return original(worker, forward_batch)
        own = forward_batch.sampling_info
        forward_batch.sampling_info = copy(own)
        forward_batch.sampling_info.is_all_greedy = False
        try:
            with self._of(forward_batch.req_pool_indices, forward_batch.seq_lens):
                return original(worker, forward_batch)
        finally:
            forward_batch.sampling_info = own

    @contextmanager
    def _of(self, slots: Tensor, lengths: Tensor) -> Iterator[None]:
        self._drafting = slots, lengths
        try:
            yield
        finally:
            self._drafting = self._first = None

    def renorm_draft_probs(
        self,
        original: _Original,
        next_token_logits: Tensor,
        sampling_info: Any,
        use_rejection_sampling: bool,
    ) -> Tensor:
        """Replace SGLang's, at the end of a prefill: return what `fast_sample` then has."""
        if self._drafting is None:
            raise RuntimeError(_ELSEWHERE)
        self._first = self.sample_draft_proposal(
            original,
            next_token_logits,
            sampling_info.temperatures,
            sampling_info.top_ks,
            sampling_seed=sampling_info.sampling_seed,
            positions=self._drafting[1],
        )
        return self._first[0]

    def fast_sample(
        self, original: _Original, probs: Tensor, *arguments: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Replace SGLang's, after `renorm_draft_probs`."""
        if self._first is None or probs is not self._first[0]:
            raise RuntimeError(_ELSEWHERE)
        return self._first[1:]

    def sample_draft_proposal(
        self,
        original: _Original,
        next_token_logits: Tensor,
        temperatures: Tensor,
        top_ks: Tensor | None = None,
        *,
        sampling_seed: Tensor | None = None,
        positions: Tensor | None = None,
        draft_step: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Replace SGLang's.

        Args:
            next_token_logits: `[bs, V_d]` float32, of the small head.
            temperatures: `[bs, 1]`. top_ks: `[bs]`, 1 for greedy requests.
            sampling_seed: `[bs]`, or None where SGLang has no seeds.
            positions: `[bs]`, the position before the one that is drafted.
            draft_step: which draft of the step it is.

        Returns:
            What SGLang calls the proposal, its probability and the token, `[bs, 1]` each; only the
            token says something.
        """
        if self._drafting is None or positions is None:
            raise RuntimeError(_ELSEWHERE)
        temperature = temperatures.flatten()
        drawn = self.arena.draft(
            next_token_logits,
            draft_step,
            slots=self._drafting[0],
            temperature=temperature if top_ks is None else temperatures_of(temperature, top_ks),
            seeds=seeds_of(sampling_seed, positions),
            positions=positions.long() + (1 - draft_step),
        )
        ones = torch.ones_like(temperatures, dtype=torch.float32)
        # -1, no distribution: verify rejects whatever stands there, by the row's stats.
        return ones, ones, drawn.clamp(min=0)[:, None]


_ELSEWHERE = (
    "rdk_cuda.integrations.sglang: SGLang drew a draft where none was expected; this SGLang is not "
    "one that the plugin knows: start it without --speculative-token-map"
)


def seeds_of(sampling_seed: Tensor | None, like: Tensor) -> Tensor:
    """`[bs]` int64: the requests' seeds, or, where SGLang has none, new ones for this draw alone.

    SGLang has seeds with `--enable-deterministic-inference`. A draw from torch's generator needs
    nothing of the host, so a CUDA graph may hold it.
    """
    if sampling_seed is not None:
        return sampling_seed
    return torch.randint(2**63 - 1, like.shape, dtype=torch.int64, device=like.device)
