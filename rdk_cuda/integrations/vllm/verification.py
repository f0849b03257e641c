"""vLLM's samplers with `rdk::verify` in place of their draws.

Every token that a request gets is decided here, also where nothing was drafted: all random numbers
are functions of its seed and the token's position (DESIGN section 5), so its text does not depend
on which other requests run.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from ...functional import Method
from .metrics import Counters
from .requests import Requests
from .target_logits import LogitRows, Processed, processed


class TokenSampler(Sampler):  # type: ignore[misc]
    """`Sampler` of a step without drafts; and what both samplers share, `decide`."""

    def serve(self, requests: Requests, proposer: Any, method: Method) -> TokenSampler:
        """Set the requests, the proposer, and the method of `rdk_cuda.verify`."""
        self.requests, self.proposer, self.method = requests, proposer, method
        return self

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> Any:
        """Decide a step without drafts, with vLLM's arguments."""
        if sampling_metadata is not self.requests.runner.input_batch.sampling_metadata:
            return super().forward(  # a run without requests, to warm up
                logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
            )
        last = self.requests.runner.query_start_loc.gpu[1 : len(logits) + 1].long() - 1
        none = torch.empty(0, dtype=torch.int32, device=logits.device)
        return self.decide(logits, sampling_metadata, [0] * len(logits), none, last)

    def decide(
        self, logits: Tensor, sampling: Any, num_drafts: list[int], drafts: Tensor, inputs: Tensor
    ) -> Any:
        """Decide the tokens of a step, and their logprobs if any are asked for.

        Args:
            logits: `[R, V_t]`, for each request its drafts' rows and then one more; or this rank's
                columns of them, where the step has a group.
            sampling: vLLM's `SamplingMetadata`.
            num_drafts: of each request. drafts: `[N]`, packed, all of them tokens.
            inputs: `[R]`, where among the step's input tokens each row's is.
        """
        device, batch = logits.device, len(num_drafts)
        rows = LogitRows.of(num_drafts, device)
        temperature = sampling.temperature
        if temperature is None:
            temperature = torch.zeros(batch, dtype=torch.float32, device=device)
        # The same for every step of an engine: a tie may be judged otherwise by vLLM's functions.
        truncate = self.logprobs_mode.startswith("processed")
        outputs = self.requests.outputs
        target = processed(logits, sampling, temperature[:batch], rows, drafts, outputs, truncate)
        if self.requests.group is not None and target.logits is not logits:
            raise RuntimeError(
                "rdk_cuda.integrations.vllm: a request changes rows of logits that are in shards; "
                "report this, and leave verify_on_shards out"
            )
        positions = self.requests.runner.positions[inputs[rows.offsets[:-1]]].long() + 1
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
        drafts: Tensor,
        temperature: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """`[B, n]` int64, n one more than the most drafts; -1 after the last token."""
        device, slots = positions.device, self.requests.take_slots()
        forbidden = self.requests.forbidden_drafts(slots, num_drafts, positions)
        logits, counts, drafts = _put_back(forbidden, target.logits, num_drafts, drafts)
        offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=device)
        own = torch.tensor(slots, dtype=torch.int64, device=device)
        group = self.requests.group
        decided = self.proposer.arena.verify(
            logits,
            drafts,
            offsets,
            slots=own,
            temperature=target.temperature,
            seeds=self.requests.seeds(device),
            positions=positions,
            draft_temperature=temperature,
            max_draft=max(counts),
            method=self.method,
            top_k=target.top_k,
            top_p=target.top_p,
            min_p=target.min_p,
            group=group,
        )
        counters: Counters = self.proposer.counters
        counters.put_back(len(drafts) - sum(num_drafts))
        counters.count(
            self.proposer.arena,
            drafts,
            offsets,
            own,
            decided.num_accepted,
            self.method,
            sharded=group is not None,
        )
        tokens: Tensor = decided.tokens[:, : max(num_drafts) + 1]
        # A row of NaN has no token, but vLLM needs one. Its own argmax gives some id, too.
        tokens[:, 0].clamp_(min=0)
        return tokens

    def _logprobs(
        self, logits: Tensor, target: Processed, sampling: Any, rows: LogitRows, tokens: Tensor
    ) -> Any:
        asked, named = sampling.max_num_logprobs, sampling.logprob_token_ids
        if asked is None and not named:
            return None
        width = tokens.shape[1]
        steps = torch.arange(width, device=tokens.device)
        places = (rows.offsets[:-1, None] + steps).flatten()
        values = logits  # which the processed ones are, too, where no parameter changes rows
        if self.logprobs_mode.startswith("processed"):
            scale = torch.where(target.temperature == 0, 1.0, target.temperature)
            values = target.logits.float() / scale[rows.request][:, None]
        values = values[places.clamp(max=len(values) - 1)].float()
        if self.logprobs_mode.endswith("logprobs"):
            values = self.compute_logprobs(values)
        decided = tokens.flatten().clamp(min=0)  # what is not decided is not read
        if named:
            by_place = {b * width + j: ids for b, ids in named.items() for j in range(width)}
            return self.gather_specific_token_logprobs(values, by_place, decided)
        return self.gather_logprobs(values, asked, decided)


def _put_back(
    forbidden: dict[int, int], logits: Tensor, counts: list[int], drafts: Tensor
) -> tuple[Tensor, list[int], Tensor]:
    """The rows, and the number and drafts of each request, with those that a grammar has masked.

    The row that was to give a bonus token is that of the dropped draft. So it is rejected by
    either method, and what replaces it comes from the residual. The row after it is never read.
    """
    if not forbidden:
        return logits, counts, drafts
    bonus = [end - 1 for end in accumulate(count + 1 for count in counts)]
    more = {b: t for b, t in forbidden.items() if bool(logits[bonus[b], t] == -torch.inf)}
    rows: list[int] = []
    tokens: list[int] = []
    for b, own in enumerate(drafts.split(counts)):
        rows += [*range(bonus[b] - counts[b], bonus[b] + 1), *[bonus[b]] * (b in more)]
        tokens += [*own.tolist(), *([more[b]] if b in more else [])]
    return (
        logits[torch.tensor(rows, dtype=torch.int64, device=logits.device)],
        [count + (b in more) for b, count in enumerate(counts)],
        torch.tensor(tokens, dtype=torch.int32, device=logits.device),
    )


def _drawn(
    metadata: Any, scheduled: list[list[int]], logits: Tensor
) -> tuple[Tensor, list[int], Tensor, Tensor]:
    """The rows, each request's number of drafts, the drafts and the rows' inputs, up to a first -1.

    vLLM's scheduler fills a request that has one token left to compute up with drafts of -1, so
    that steps have one shape. Here is where drafts enter; behind it nobody has to know of -1.
    """
    counts, drafts = metadata.num_draft_tokens, metadata.draft_token_ids
    inputs = metadata.logits_indices
    drawn = [
        own.index(-1) if -1 in own else count for own, count in zip(scheduled, counts, strict=False)
    ]
    if drawn == counts:
        return logits, counts, drafts, inputs
    first = [0, *accumulate(counts)]
    places = [first[b] + j for b, count in enumerate(drawn) for j in range(count)]
    rows = [first[b] + b + j for b, count in enumerate(drawn) for j in range(count + 1)]
    kept = torch.tensor(rows, dtype=torch.int64, device=logits.device)
    left = torch.tensor(places, dtype=torch.int64, device=logits.device)
    return logits[kept], drawn, drafts[left], inputs[kept]


class Verifier(RejectionSampler):  # type: ignore[misc]
    """`RejectionSampler` of a step with drafts."""

    def forward(
        self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any
    ) -> Any:
        """Decide a step with drafts, with vLLM's arguments."""
        sampler: TokenSampler = self.sampler
        if sampling_metadata is not sampler.requests.runner.input_batch.sampling_metadata:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        drawn = _drawn(metadata, sampling_metadata.spec_token_ids, logits)
        logits, num_drafts, drafts, inputs = drawn
        return sampler.decide(logits, sampling_metadata, num_drafts, drafts, inputs.long())
