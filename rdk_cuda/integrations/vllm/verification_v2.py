"""Model runner V2's samplers with `rdk::verify` in place of their draws.

V2 applies a request's masks, biases, penalties, temperature and min-p to each row of logits, with
the drafts before that row. Top-k and top-p come last, and `rdk::verify` gets them as they are. Only
what lists a row's likeliest tokens needs rows that are truncated beforehand.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._ops.inputs import upload
from ...functional import Method
from .drafting_v2 import Speculator
from .model_runner_v2 import Settings, rejection_sample


class TokenSampler:
    """Decides the steps of model runner V2, with drafts or without.

    Args:
        sampler: vLLM's own, which applies a request's parameters.
        speculator: whose drafts to decide.
        method: of `rdk_cuda.verify`.
        truncates: whether vLLM's functions apply top-k and top-p. Of every step of an engine
            alike: they may judge a tie otherwise.

    Attributes:
        num_drafts: of this step, by slot; 0 where there is none.
        compared: the slots whose drafts of this step vLLM has compared with their grammar.
        settings: slots, and those of their requests; None where a slot has another request now.
    """

    def __init__(
        self, sampler: Any, speculator: Speculator, method: Method, truncates: bool = False
    ) -> None:
        self.sampler, self.speculator, self.method = sampler, speculator, method
        self.truncates = truncates
        self.num_drafts: dict[int, int] = {}
        self.compared: frozenset[int] = frozenset()
        self.settings: tuple[list[int], Settings] | None = None

    def sample(
        self,
        logits: Tensor,
        expanded_idx_mapping: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        pos: Tensor,
        *others: Any,
        return_logprobs: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Do `Sampler.sample`, with vLLM's arguments: one row of logits for each request."""
        slots = expanded_idx_mapping, idx_mapping, idx_mapping_np
        processed, *limits = self.constrained(logits, *slots, pos, *others)
        ends = range(len(pos) + 1)
        rows = processed, pos, ends, pos, idx_mapping, idx_mapping_np
        tokens, _ = self.decide(rows, *limits)
        return tokens[:, 0].contiguous(), processed

    def constrained(
        self, logits: Tensor, every: Tensor, slots: Tensor, slots_np: Any, *others: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Rows after a request's parameters, and the top-k and top-p that are left to apply.

        Takes the arguments of vLLM's `apply_sampling_params`.
        """
        truncates, given = self.truncates, (logits, every, slots, slots_np, *others)
        rows: Tensor = self.sampler.apply_sampling_params(*given, skip_top_k_top_p=not truncates)
        return (rows, None, None) if truncates else (rows, *self.limits(slots, slots_np))

    def limits(
        self, idx_mapping: Tensor, idx_mapping_np: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return `[B]` each, top-k and top-p; None where no request has it."""
        states, slots = self.sampler.sampling_states, idx_mapping_np
        any_top_k = (states.top_k.np[slots] != states.vocab_size).any()
        any_top_p = (states.top_p.np[slots] != 1.0).any()
        return (
            states.top_k.gpu[idx_mapping] if any_top_k else None,
            states.top_p.gpu[idx_mapping] if any_top_p else None,
        )

    def decide(
        self, rows: tuple[Any, ...], top_k: Tensor | None, top_p: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Decide a step whose rows are the first arguments of `rejection_sample`."""
        states, arena = self.sampler.sampling_states, self.speculator.arena
        idx_mapping, slots = rows[-2], rows[-1].tolist()
        by_slot = states.temperature.gpu, states.seeds.gpu
        if self.settings is None or self.settings[0] != slots:
            self.settings = slots, Settings.of(idx_mapping, *by_slot)
        sampled, num_sampled = rejection_sample(
            *(*rows, *by_slot, arena.draft_length, arena),
            method=self.method,
            top_k=top_k,
            top_p=top_p,
            settings=self.settings[1],
            counters=self.speculator.counters,
        )
        # A row of NaN has no token, but vLLM needs one. Its own argmax gives some id, too.
        return sampled.clamp_(min=0), num_sampled

    def verify(
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
        """Do `RejectionSampler._verify`, with vLLM's arguments."""
        slots = idx_mapping_np.tolist()
        counts = [self.num_drafts.get(slot, 0) + 1 for slot in slots]
        ends = [0, *accumulate(counts)]
        if ends[-1] != len(logits):
            raise RuntimeError(
                f"rdk_cuda.integrations.vllm: a step has {len(logits)} rows of logits, and its "
                f"requests with their drafts need {ends[-1]}; report this"
            )
        if self.compared:
            compared = np.array([slot in self.compared for slot in slots]).repeat(counts)
            verify_draft_sampled = self._put_back(
                logits, draft_sampled, verify_draft_sampled, upload(compared, logits.device)
            )
        processed, *limits = self.constrained(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
        )
        rows = processed, verify_draft_sampled, ends, pos, idx_mapping, idx_mapping_np
        return processed, *self.decide(rows, *limits)

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
        self.speculator.counters.put_back(put_back.sum())
        return torch.where(put_back, drawn, judged)
