"""vLLM's samplers with `rdk::verify` in place of their draws.

Every token that a request gets is decided here, also where nothing was drafted: all random numbers
are functions of its seed and the token's position (DESIGN section 5), so its text does not depend
on which other requests run.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from ... import _ops as operators
from ...affinity import Affinity
from ...functional import METHODS, Method
from .drafting import DraftState
from .requests import Requests
from .target_logits import Processed, Rows, processed

__all__ = ["TokenSampler", "Verifier"]


class TokenSampler(Sampler):  # type: ignore[misc]
    """`Sampler` of a step without drafts; and what both samplers share, `decide`."""

    def serve(self, requests: Requests, proposer: Any, method: Method) -> TokenSampler:
        """Whose requests to decide, whose drafts, and by which method of `rdk_cuda.verify`."""
        self.requests, self.proposer, self.method = requests, proposer, METHODS[method]
        self.max_model_len = int(requests.runner.max_model_len)
        return self

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> Any:
        """vLLM's arguments and result."""
        if sampling_metadata is not self.requests.runner.input_batch.sampling_metadata:
            return super().forward(  # a run without requests, to warm up
                logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
            )
        last = self.requests.runner.query_start_loc.gpu[1 : len(logits) + 1].long() - 1
        return self.decide(logits, sampling_metadata, [0] * len(logits), None, last)

    def decide(
        self,
        logits: Tensor,
        sampling: Any,
        num_drafts: list[int],
        drafts: Tensor | None,
        inputs: Tensor,
    ) -> Any:
        """The tokens of a step, and their logprobs if any are asked for.

        Args:
            logits: `[R, V_t]`, for each request its drafts' rows and then one more.
            sampling: vLLM's `SamplingMetadata`.
            num_drafts: of each request. drafts: `[N]`, packed; None if there are none.
            inputs: `[R]`, where among the step's input tokens each row's is.
        """
        device, batch = logits.device, len(num_drafts)
        rows = Rows.of(num_drafts, device)
        temperature = sampling.temperature
        if temperature is None:
            temperature = torch.zeros(batch, dtype=torch.float32, device=device)
        # The same for every step of an engine: a tie may be judged otherwise by vLLM's functions.
        truncate = self.logprobs_mode.startswith("processed")
        target = processed(logits, sampling, temperature[:batch], rows, truncate)
        first = torch.tensor([0, *rows.counts[:-1]], dtype=torch.int64, device=device).cumsum(0)
        positions = self.requests.runner.positions[inputs[first]].long() + 1
        tokens = self._verified(target, num_drafts, drafts, temperature[:batch], positions)
        self.requests.decided = tokens
        # Nothing here draws from vLLM's generators, and on a CPU (0.32.0) it fails to rewind those
        # of requests whose prefill goes on.
        self.requests.runner.input_batch.generators.clear()
        return SamplerOutput(tokens.int(), self._logprobs(logits, target, sampling, rows, tokens))

    def _verified(
        self,
        target: Processed,
        num_drafts: list[int],
        drafts: Tensor | None,
        temperature: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """`[B, n]` int64, n one more than the most drafts; -1 after the last token."""
        device = positions.device
        affinity: Affinity = self.proposer.drafter.affinity
        packed, begins = self.requests.draft_rows(num_drafts)
        layout = self.proposer.layout
        if packed is None:
            packed = torch.empty(0, layout.width, dtype=layout.dtype, device=device)
        state = layout.unpack(packed)
        judged = _Judged.of(target.logits, num_drafts, drafts, begins)
        if drafts is not None:
            judged = self._with_forbidden(judged, state, positions)
        counts = judged.counts
        tokens: Tensor
        tokens, _, _ = operators.verify(
            judged.logits,
            state.logits,
            state.stats,
            torch.tensor(
                [
                    begin + j if begin >= 0 else -1
                    for begin, count in zip(begins, counts, strict=True)
                    for j in range(count)
                ],
                dtype=torch.int32,
                device=device,
            ),
            judged.drafts,
            torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device),
            target.temperature,
            temperature,
            operators.step_keys(self.requests.seeds(device), positions),
            positions,
            *affinity.by_target,
            max(counts),
            state.dynamic_tokens,
            state.dynamic_logits,
            target.top_k,
            target.top_p,
            target.min_p,
            method=self.method,
        )
        tokens = tokens[:, : max(num_drafts) + 1]
        # A row of NaN has no token, but vLLM needs one. Its own argmax gives some id, too.
        tokens[:, 0].clamp_(min=0)
        return tokens

    def _with_forbidden(self, judged: _Judged, state: DraftState, positions: Tensor) -> _Judged:
        """The drafts that the scheduler dropped because a grammar forbids them, put back.

        The row that was to give a bonus token is that of the dropped draft, and the grammar has
        masked it there. So it is rejected by either method, and what replaces it comes from the
        residual. The row after it is never read.
        """
        kept = self.requests.runner._draft_probs
        if kept is None:
            return judged
        room = (
            self.max_model_len
            - 1
            - positions
            - torch.tensor(judged.counts, dtype=torch.int64, device=positions.device)
        )
        dropped = self.requests.cut_by_grammar(judged.counts, kept.shape[1], room)
        return judged.with_dropped(
            [
                int(state.tokens[begin + count]) if cut and begin >= 0 else None
                for cut, begin, count in zip(dropped, judged.begins, judged.counts, strict=True)
            ]
        )

    def _logprobs(
        self, logits: Tensor, target: Processed, sampling: Any, rows: Rows, tokens: Tensor
    ) -> Any:
        """Of the decided tokens, in vLLM's layout: a row for each place of `tokens`."""
        asked, named = sampling.max_num_logprobs, sampling.logprob_token_ids
        if asked is None and not named:
            return None
        width = tokens.shape[1]
        counts = torch.tensor(rows.counts, dtype=torch.int64, device=tokens.device)
        first = counts.cumsum(0) - counts
        places = (first[:, None] + torch.arange(width, device=tokens.device)).flatten()
        values = target.logits if self.logprobs_mode.startswith("processed") else logits
        if values is target.logits:
            scale = torch.where(target.temperature == 0, 1.0, target.temperature)
            values = values.float() / scale[rows.request][:, None]
        values = values[places.clamp(max=len(values) - 1)].float()
        if self.logprobs_mode.endswith("logprobs"):
            values = self.compute_logprobs(values)
        decided = tokens.flatten().clamp(min=0)  # what is not decided is not read
        if named:
            by_place = {b * width + j: ids for b, ids in named.items() for j in range(width)}
            return self.gather_specific_token_logprobs(values, by_place, decided)
        return self.gather_logprobs(values, asked, decided)


class _Judged(NamedTuple):
    """What is verified: rows of logits, and the drafts of each request.

    Attributes:
        logits: `[R, V_t]`. counts: of drafts, of each request. drafts: `[N]`.
        begins: the row of each request's first draft in the draft state, -1 for none.
    """

    logits: Tensor
    counts: list[int]
    drafts: Tensor
    begins: list[int]

    @classmethod
    def of(
        cls, logits: Tensor, counts: list[int], drafts: Tensor | None, begins: list[int]
    ) -> _Judged:
        """With no drafts at all where `drafts` is None."""
        none = torch.empty(0, dtype=torch.int32, device=logits.device)
        return cls(logits, counts, none if drafts is None else drafts, begins)

    def with_dropped(self, dropped: list[int | None]) -> _Judged:
        """With one more draft for each token in `dropped` whose logit is masked."""
        rows: list[int] = []
        drafts: list[int] = []
        counts, row = [], 0
        for token, count, own in zip(
            dropped, self.counts, self.drafts.split(self.counts), strict=True
        ):
            rows += range(row, row + count + 1)
            drafts += own.tolist()
            row += count + 1
            forbidden = token is not None and bool(self.logits[row - 1, token] == -torch.inf)
            counts.append(count + forbidden)
            if token is not None and forbidden:
                drafts.append(token)
                rows.append(row - 1)
        if counts == self.counts:
            return self
        return self._replace(
            logits=self.logits[torch.tensor(rows, dtype=torch.int64, device=self.logits.device)],
            counts=counts,
            drafts=torch.tensor(drafts, dtype=torch.int32, device=self.logits.device),
        )


class Verifier(RejectionSampler):  # type: ignore[misc]
    """`RejectionSampler` of a step with drafts."""

    def forward(
        self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any
    ) -> Any:
        """vLLM's arguments and result."""
        sampler: TokenSampler = self.sampler
        if sampling_metadata is not sampler.requests.runner.input_batch.sampling_metadata:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        return sampler.decide(
            logits,
            sampling_metadata,
            metadata.num_draft_tokens,
            metadata.draft_token_ids,
            metadata.logits_indices.long(),
        )
