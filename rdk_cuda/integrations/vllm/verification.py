"""The decisions of model runner V1, by `rdk::verify` in place of vLLM's samplers.

Every token that a request gets is decided here, also where nothing was drafted: all random numbers
are functions of its seed and the token's position (DESIGN section 5), so its text does not depend
on which other requests run.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput

from ..._ops.inputs import upload
from ...functional import Method
from .configuration import lists_processed
from .requests import Requests
from .target_logits import LogitRows, Processed, processed


class TokenSampler:
    """Decides the steps of model runner V1, with drafts or without.

    Args:
        requests: the runner's. proposer: whose drafts to decide.
        method: of `rdk_cuda.verify`.
    """

    def __init__(self, requests: Requests, proposer: Any, method: Method) -> None:
        self.requests, self.proposer, self.method = requests, proposer, method
        config = requests.runner.vllm_config
        self._lists: str = config.model_config.logprobs_mode
        # The same for every step of an engine: a tie may be judged otherwise by vLLM's functions.
        self._truncates = lists_processed(config)

    def sample(self, logits: Tensor, spec_decode_metadata: Any) -> Any:
        """Do `GPUModelRunner._sample`, with its arguments: None, or a step's drafts."""
        sampling = self.requests.runner.input_batch.sampling_metadata
        if spec_decode_metadata is None:
            counts = [0] * len(logits)
            drafts = torch.empty(0, dtype=torch.int32, device=logits.device)
            return self.decide(logits, sampling, counts, drafts, self.requests.positions(counts))
        positions = self.requests.positions(spec_decode_metadata.num_draft_tokens)
        logits, counts, drafts = _drawn(spec_decode_metadata, sampling.spec_token_ids, logits)
        return self.decide(logits, sampling, counts, drafts, positions)

    def decide(
        self, logits: Tensor, sampling: Any, num_drafts: list[int], drafts: Tensor, positions: Any
    ) -> Any:
        """Decide the tokens of a step, and their logprobs if any are asked for.

        Args:
            logits: `[R, V_t]`, for each request its drafts' rows and then one more; or this rank's
                columns of them, where the step has a group.
            sampling: vLLM's `SamplingMetadata`.
            num_drafts: of each request. drafts: `[N]`, packed, all of them tokens.
            positions: `[B]` on the host, of the tokens that the first rows decide.
        """
        rows = LogitRows(num_drafts, logits.device)
        requests, params = self.requests, self.requests.params()
        temperature = requests.temperature(sampling, logits.device)
        target = processed(
            logits, sampling, params, temperature, rows, drafts, requests, self._truncates
        )
        if requests.group is not None and target.logits is not logits:
            raise RuntimeError(
                "rdk_cuda.integrations.vllm: a request changes rows of logits that are in shards; "
                "report this, and leave verify_on_shards out"
            )
        tokens = self._verified(target, num_drafts, drafts, temperature, positions)
        # Nothing here draws from vLLM's generators, and on a CPU (0.32.0) it fails to rewind those
        # of requests whose prefill goes on.
        requests.runner.input_batch.generators.clear()
        return SamplerOutput(tokens, self._logprobs(logits, target, sampling, rows, tokens))

    def _verified(
        self,
        target: Processed,
        num_drafts: list[int],
        drafts: Tensor,
        temperature: Tensor,
        positions: Any,
    ) -> Tensor:
        """`[B, n]` int32, n one more than the most drafts; -1 after the last token."""
        requests, arena, counters = self.requests, self.proposer.arena, self.proposer.counters
        slots, counts, logits = requests.take_slots(), num_drafts, target.logits
        if forbidden := requests.forbidden_drafts(slots, counts, positions):
            own = [requests.drafts[counts[b]][slots[b]] for b in forbidden]
            logits, counts, drafts, cut = _put_back(forbidden, own, logits, counts, drafts)
            counters.put_back(cut)
        layout = arena.layout(counts, slots, positions)
        first = layout.more[0].long()
        decided = arena.verify(
            logits,
            drafts,
            layout.offsets,
            layout.rows,
            temperature=target.temperature,
            seeds=requests.seeds(first.device),
            positions=first,
            draft_temperature=temperature,
            max_draft=max(counts),
            method=self.method,
            top_k=target.top_k,
            top_p=target.top_p,
            min_p=target.min_p,
            group=requests.group,
        )
        sharded = requests.group is not None
        counters.count(arena, drafts, layout, decided.num_accepted, self.method, sharded)
        tokens: Tensor = decided.tokens.int()
        if counts is not num_drafts:
            tokens = tokens[:, : max(num_drafts) + 1].contiguous()
        # A row of NaN has no token, but vLLM needs one. Its own argmax gives some id, too.
        tokens[:, 0].clamp_(min=0)
        requests.decide(tokens, first)
        return tokens

    def _logprobs(
        self, logits: Tensor, target: Processed, sampling: Any, rows: LogitRows, tokens: Tensor
    ) -> Any:
        """Of each token that may have been decided, in vLLM's layout; None where nobody asks."""
        asked, named = sampling.max_num_logprobs, sampling.logprob_token_ids
        if asked is None and not named:
            return None
        width = tokens.shape[1]
        steps = torch.arange(width, device=tokens.device)
        places = (rows.offsets[:, None] + steps).flatten()
        values = logits  # which the processed ones are, too, where no parameter changes rows
        if self._truncates:
            scale = torch.where(target.temperature == 0, 1.0, target.temperature)
            values = target.logits.float() / scale[rows.request][:, None]
        values = values[places.clamp(max=len(values) - 1)].float()
        if self._lists.endswith("logprobs"):
            values = values.log_softmax(-1)
        decided = tokens.reshape(-1, 1).clamp(min=0).long()  # what is not decided is not read
        if named:
            longest = max(map(len, named.values()))
            given = np.full((len(tokens), longest), -1, dtype=np.int64)
            for b, own in named.items():
                given[b, : len(own)] = own
            listed = upload(given, tokens.device).repeat_interleave(width, 0)
        else:
            listed = values.topk(asked, -1).indices
        ids = torch.cat([decided, listed], 1)
        found = values.gather(1, ids.clamp(min=0)).masked_fill_(ids < 0, -torch.inf)
        ranks = (values >= found[:, :1]).sum(1)
        return LogprobsTensors(ids.clamp_(min=0).int(), found, ranks)


def _put_back(
    forbidden: list[int], own: list[Tensor], logits: Tensor, counts: list[int], drafts: Tensor
) -> tuple[Tensor, list[int], Tensor, Tensor]:
    """Return rows, counts and drafts with those that a grammar has masked, and how many these are.

    The row that was to give a bonus token is that of the dropped draft. So it is rejected by
    either method, and what replaces it comes from the residual. The row after it is never read.
    One that is not masked was cut for another reason, and stays none: -1.
    """
    more = {b: place for place, b in enumerate(forbidden)}
    rows, kept, bonus, last = [], [], [], -1
    for b, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
        last += count + 1
        bonus.append(last)
        rows += [*range(last - count, last + 1), *[last] * (b in more)]
        kept += [*range(end - count, end), *([len(drafts) + more[b]] if b in more else [])]
    at = upload(np.array([bonus[b] for b in forbidden]), logits.device)
    cut = torch.stack(own).int()
    cut = cut.where(logits[at].gather(1, cut[:, None].long())[:, 0] == -torch.inf, -1)
    return (
        logits[upload(np.array(rows), logits.device)],
        [count + (b in more) for b, count in enumerate(counts)],
        torch.cat([drafts, cut])[upload(np.array(kept), logits.device)],
        (cut >= 0).sum(),
    )


def _drawn(
    metadata: Any, scheduled: list[list[int]], logits: Tensor
) -> tuple[Tensor, list[int], Tensor]:
    """The rows, each request's number of drafts, and the drafts, up to a first -1.

    vLLM's scheduler fills a request that has one token left to compute up with drafts of -1, so
    that steps have one shape. Here is where drafts enter; behind it nobody has to know of -1.
    """
    counts, drafts = metadata.num_draft_tokens, metadata.draft_token_ids
    drawn = [
        own.index(-1) if -1 in own else count for own, count in zip(scheduled, counts, strict=False)
    ]
    if drawn == counts:
        return logits, counts, drafts
    first = [0, *accumulate(counts)]
    places = [first[b] + j for b, count in enumerate(drawn) for j in range(count)]
    rows = [first[b] + b + j for b, count in enumerate(drawn) for j in range(count + 1)]
    kept, left = (upload(np.array(own, np.int64), logits.device) for own in (rows, places))
    return logits[kept], drawn, drafts[left]
