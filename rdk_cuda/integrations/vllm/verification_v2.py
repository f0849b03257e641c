"""Model runner V2's samplers with `rdk::verify` in place of their draws.

V2 applies a request's masks, biases, penalties, temperature and min-p to each row of logits, with
the drafts before that row. Top-k and top-p come last, and `rdk::verify` gets them as they are. Only
what lists a row's likeliest tokens needs rows that are truncated beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from ...functional import Method
from ..draft_arena import upload
from .drafting_v2 import Speculator
from .model_runner_v2 import rejection_sample


class TokenSampler(Sampler):  # type: ignore[misc]
    """`Sampler` of a step without drafts; and what both samplers share, `decide`.

    Attributes:
        speculator: whose drafts to decide.
        method: of `rdk_cuda.verify`.
    """

    speculator: Speculator
    method: Method

    @property
    def truncates(self) -> bool:
        """Of every step of an engine alike: vLLM's functions may judge a tie otherwise."""
        return bool(self.return_sampling_mask) or self.logprobs_mode.startswith("processed")

    def _sample_random(
        self,
        processed_logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping_np: Any,
        pos: Tensor,
        top_k: Tensor | None,
        top_p: Tensor | None,
        *kernels: bool,
    ) -> tuple[Tensor, Tensor]:
        """vLLM's arguments and result: one row of logits for each request.

        The last ones choose vLLM's kernels, which are not used: one in 0.32, two in 0.33.
        """
        if self.truncates:
            processed_logits = apply_top_k_top_p(processed_logits, top_k, top_p)
            top_k = top_p = None
        one_each = range(len(pos) + 1)
        tokens, _ = self.decide(
            processed_logits, pos, one_each, pos, expanded_idx_mapping, idx_mapping_np, top_k, top_p
        )
        return tokens[:, 0].contiguous(), processed_logits

    def limits(
        self, idx_mapping: Tensor, idx_mapping_np: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return `[B]` each, top-k and top-p; None where no request has it."""
        states, slots = self.sampling_states, idx_mapping_np
        any_top_k = (states.top_k.np[slots] != states.vocab_size).any()
        any_top_p = (states.top_p.np[slots] != 1.0).any()
        return (
            states.top_k.gpu[idx_mapping] if any_top_k else None,
            states.top_p.gpu[idx_mapping] if any_top_p else None,
        )

    def decide(
        self,
        logits: Tensor,
        draft_sampled: Tensor,
        cu_num_logits: Any,
        pos: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        top_k: Tensor | None,
        top_p: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        states = self.sampling_states
        sampled, num_sampled = rejection_sample(
            logits,
            draft_sampled,
            cu_num_logits,
            pos,
            idx_mapping,
            idx_mapping_np,
            states.temperature.gpu,
            states.seeds.gpu,
            self.speculator.arena.draft_length,
            self.speculator.arena,
            method=self.method,
            top_k=top_k,
            top_p=top_p,
            counters=self.speculator.counters,
        )
        # A row of NaN has no token, but vLLM needs one. Its own argmax gives some id, too.
        sampled[:, 0].clamp_(min=0)
        return sampled, num_sampled.clamp_(min=1)


class Verifier(RejectionSampler):  # type: ignore[misc]
    """`RejectionSampler` of a step with drafts, around a `TokenSampler`.

    Attributes:
        validated: the requests whose drafts of this step vLLM has compared with their grammar.
    """

    validated: frozenset[str] = frozenset()
    _compared: Tensor | None = None
    _ends: Any  # of the rows of each request that is still to be verified

    def __call__(
        self,
        logits: Tensor,
        input_batch: Any,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> Any:
        """Decide a step with drafts, with vLLM's arguments."""
        self._compared, self._ends = None, input_batch.cu_num_logits_np
        if invalid_drafts is not None:
            flags = np.zeros(len(self.sampler.needs_logits_processing), dtype=bool)
            named = zip(input_batch.req_ids, input_batch.idx_mapping_np.tolist(), strict=False)
            flags[[slot for name, slot in named if name in self.validated]] = True
            self._compared = upload(flags, logits.device)
        return super().__call__(logits, input_batch, draft_logits, invalid_drafts)

    def _put_back(self, logits: Tensor, drawn: Tensor, judged: Tensor, compared: Tensor) -> Tensor:
        """`judged` with the drafts that a grammar has masked in the row before.

        vLLM takes such a draft for none. But to judge a position by its token is what makes the
        output biased (DESIGN section 5). `rdk::verify` rejects it, as its probability is 0, and
        draws from the residual. Drafts that vLLM could not compare in time stay none, whatever
        their tokens are, and so do its placeholders, which are -1 in `drawn`, too.
        """
        before = logits[:-1].gather(1, drawn[1:, None].long().clamp(min=0))[:, 0]
        masked = torch.nn.functional.pad(before == -torch.inf, (1, 0))
        put_back = (judged < 0) & (drawn >= 0) & masked & compared
        self.sampler.speculator.counters.put_back(put_back.sum())
        return torch.where(put_back, drawn, judged)

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sampler: TokenSampler = self.sampler
        if self._compared is not None:
            compared = self._compared[expanded_idx_mapping]
            verify_draft_sampled = self._put_back(
                logits, draft_sampled, verify_draft_sampled, compared
            )
        processed = sampler.apply_sampling_params(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            skip_top_k_top_p=not sampler.truncates,
        )
        top_k = top_p = None
        if not sampler.truncates:
            top_k, top_p = sampler.limits(idx_mapping, idx_mapping_np)
        # vLLM hands over a batch in pieces where its rows are many.
        ends = self._ends[: len(idx_mapping_np) + 1]
        self._ends = self._ends[len(idx_mapping_np) :]
        sampled, num_sampled = sampler.decide(
            processed,
            verify_draft_sampled,
            ends - ends[0],
            pos,
            idx_mapping,
            idx_mapping_np,
            top_k,
            top_p,
        )
        return processed, sampled, num_sampled
