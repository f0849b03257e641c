"""A drafter that is itself decoded speculatively: what drafts for it, and how it judges that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import functional
from ...affinity import Affinity
from ...decoding.generation import Batch, Continuation
from ...decoding.models import CausalModel, Output
from ...decoding.proposal import Proposal, Step, padded
from ...decoding.proposers import DrafterChain, Proposer
from ...decoding.rules import Decided, Logprobs, Verification
from ...decoding.target_reading import reading_of
from ...decoding.trees import branch
from ...functional import Method


class Cascade(DrafterChain):
    """A drafter's chain in fewer of its passes: another proposer drafts for it.

    The drafter reads what `inner` proposes in one pass, and judges it as a target would, by its own
    redistributed q (Chen et al., arXiv:2312.11462). So the chain is distributed
    as `DrafterChain`'s, and the target judges it by the same rows.

    Args:
        inner: proposes to the drafter, in target tokens: n-grams, the chain of a smaller drafter
            with an affinity of its own, or another cascade.
        drafter, affinity, draft_length: as in `DrafterChain`. Every sequence drafts K tokens where
            there is room.
        method: how the drafter judges: of `rdk_cuda.verify`.
        options: the others of `DrafterChain`, without length.

    Raises:
        ValueError: a `StateDrafter`, which cannot read several tokens ahead of the target, and
            what a `DrafterChain` refuses.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from rdk_cuda import Affinity, Vocabulary
        >>> from rdk_cuda.decoding import NGrams, SpeculativeDecoder
        >>> from rdk_cuda.integrations.huggingface import HuggingFaceModel
        >>> from rdk_cuda.labs.cascades import Cascade
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> target, drafter = (HuggingFaceModel(LlamaForCausalLM(config).eval()) for _ in "td")
        >>> cascade = Cascade(NGrams(), drafter, Affinity.intersection(Vocabulary.identity(50)))
        >>> decoder = SpeculativeDecoder(target, proposer=cascade)
        >>> decoder.generate([[5, 3], [7]], max_new_tokens=9, seeds=[1, 2]).statistics.tokens
        18
    """

    def __init__(
        self,
        inner: Proposer,
        drafter: CausalModel,
        affinity: Affinity,
        *,
        draft_length: int = 8,
        method: Method = "token",
        **options: Any,
    ) -> None:
        super().__init__(drafter, affinity, draft_length=draft_length, **options)
        if self._state_drafter is not None:
            raise ValueError(
                f"Cascade: drafter is a {type(drafter).__name__}, which reads the target's states "
                "token by token; needs a model that reads several tokens in a pass"
            )
        if inner.drawn_with is not None:
            self._refuse_unreadable(inner.drawn_with)
        self.inner = inner
        # Fixed tokens are judged without one.
        self.rule = Verification(inner.drawn_with or affinity, method)

    def reset(self, batch_size: int) -> None:
        super().reset(batch_size)
        self.inner.reset(batch_size)

    def rollback(self, lengths: Sequence[int]) -> None:
        super().rollback(lengths)
        self.inner.rollback(lengths)

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        places, link = self._places(sequences, step), self.first_link(step)
        own = [
            Continuation(s.tokens, s.length, s.length, s.length + max(count, 0), ())
            for s, count in zip(sequences, places, strict=True)
        ]
        # Fresh in every outer step: DESIGN section 5, "More than a chain".
        keys = functional.step_keys(step.seeds, step.positions)
        limits = step.limits if self.truncate_drafts else {}
        seeds = functional.step_keys(keys, step.positions, stage=1)
        batch = Batch(own, link["temperature"], seeds, limits)
        size = self.affinity.target_size
        stage = _Stage(self, own, link["temperature"], limits, max(places, default=0))
        while any(rooms := [s.room for s in own]):
            inner_step = batch.step(rooms)
            proposal = self.inner.propose(own, inner_step)
            reading = reading_of(proposal, own, inner_step, size)
            output = reading.feed(self.drafter)
            decided = stage(output, reading.proposal, inner_step, None)
            self.inner.observe(reading.observed(output, decided))
            reading.settle(self.drafter, decided)
            for s, new in zip(own, decided.tokens, strict=True):
                s.extend(new)
            read = [s.length - 1 for s in own]
            self.drafter.rollback(read)
            self.inner.rollback(read)
        chains = [s.new for s in own]
        if not any(chains):
            return Proposal.fixed(chains, step)
        tokens = padded(chains, self.affinity.device)
        rows: dict[str, Any] = {n: kept[:, : tokens.shape[1]] for n, kept in stage.rows.items()}
        # For the rows' stats; what it draws is not looked at.
        draft = functional.draft(rows.pop("logits"), self.affinity, **link, **rows)
        return Proposal(tokens, draft)


class _Stage:
    """The rule of an inner stage: the target is the drafter's q over target tokens.

    Attributes:
        rows: what each decided token was drawn from: the drafter's `logits` `[B, K, V_d]` and, if
            there are any, `dynamic_tokens` and `dynamic_logits` `[B, K, C]`.
    """

    def __init__(
        self,
        cascade: Cascade,
        sequences: Sequence[Continuation],
        temperature: Tensor,
        limits: dict[str, Tensor],
        places: int,
    ) -> None:
        self.cascade, self.sequences, self.places = cascade, sequences, places
        self.temperature, self.limits = temperature, limits
        self.rows: dict[str, Tensor] = {}

    def __call__(
        self, output: Output, proposal: Proposal, step: Step, logprobs: Logprobs, **limits: Any
    ) -> Decided:
        columns, own = self._columns(output, proposal), self.cascade
        q = functional.redistribute(
            output.logits, own.affinity, self.temperature, **columns, **self.limits
        )
        # Greedy q is one-hot, so its argmax is what the drafter drafts.
        step = step._replace(temperature=(self.temperature > 0).float())
        decided = own.rule(output._replace(logits=q.log()), proposal, step, None)
        for s, new in zip(self.sequences, decided.tokens, strict=True):
            if s.room and new[-1] < 0:  # no distribution here: this draft ends
                new.pop()
                s.full_length = s.length + len(new)
        self._keep({"logits": output.logits, **columns}, decided)
        return decided

    def _columns(self, output: Output, proposal: Proposal) -> dict[str, Tensor]:
        tokens, (batch, nodes) = proposal.tokens.tolist(), proposal.tokens.shape
        chain = [list(range(-1, nodes - 1))] * batch
        parents = chain if proposal.parents is None else proposal.parents.tolist()

        def paths(row: int) -> list[list[int]]:
            return [
                [max(own[above], 0) for above in branch(up, row - 1)]
                for own, up in zip(tokens, parents, strict=True)
            ]

        return self.cascade._dynamic_of_rows(self.sequences, paths, output)

    def _keep(self, given: dict[str, Tensor], decided: Decided) -> None:
        index = []
        for b, (s, new) in enumerate(zip(self.sequences, decided.tokens, strict=True)):
            nodes = range(len(new) - 1) if decided.paths is None else decided.paths[b]
            rows = [0, *(node + 1 for node in nodes)]
            places = range(len(s.new), s.full_length - s.prompt_length)
            index += [(b, place, row) for place, row in zip(places, rows, strict=False)]
        if not index:
            return
        b, place, row = torch.tensor(index, dtype=torch.int64, device=given["logits"].device).T
        for name, values in given.items():
            if name not in self.rows:
                shape = len(values), self.places, values.shape[2]
                unused = -1 if name == "dynamic_tokens" else 0
                self.rows[name] = values.new_full(shape, unused)
            self.rows[name][b, place] = values[b, row]
