"""Batched speculative decoding on the public API, short enough to copy and change.

In each step the drafter proposes up to K tokens, one after the other (`rdk_cuda.draft`). The target
reads them in one pass, and `rdk_cuda.verify` says how many are accepted and which token follows.
The output has exactly the target's distribution at the requested temperature, whatever the drafter
and the affinity are. They decide only how many tokens a pass yields.

A decoder of your own may choose freely what it drafts, with one exception (DESIGN section 5):
whether a position is drafted, and its q, may not depend on the token drawn there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from .. import functional
from .._ops.inputs import Integers, Numbers, refuse_other_than_affinity, whole_number
from ..affinity import Affinity
from ..dynamic_tokens import DynamicTokens, FullHead, dynamic_columns
from ..functional import METHODS, Draft, Method
from ..functional.ranges import Range, mark
from ..vocabulary import Vocabulary
from .generation import (
    Batch,
    Continuation,
    Generation,
    Kind,
    Statistics,
    Stop,
)
from .models import CausalModel, Output, StateDrafter

Process = Callable[[Sequence[Continuation], Tensor], Tensor]
"""A hook that changes the target's logits before they judge drafts. It is called with the sequences
and logits `[B, n, V_t]`, and returns logits of that shape. Row `[b, j]` predicts what follows the
tokens of sequence b and its first j drafts. Other rows, and sequences without room, are ignored."""

Allowed = Callable[[Sequence[Continuation], int], Tensor]
"""A hook for grammars. It is called with the sequences and n, and returns which tokens are allowed
in the rows that a `Process` gets: int32 `[B, n, ceil(V_t / 32)]`, one bit for each token, as
`rdk_cuda.verify` takes it."""


class SpeculativeDecoder:
    """Continues a batch of prompts as `target` would, with `drafter` proposing.

    Args:
        target: predicts the V_t tokens of the output.
        drafter: predicts V_d tokens; None for the target alone, with `draft_length=0`.
        affinity: V_d to V_t; None if both have the same vocabulary.
        draft_length: K, the most tokens drafted in a step. A sequence near its end drafts fewer.
        draft_temperature: the drafter's; None: each sequence's own.
        truncate_drafts: draft inside the same top-k, top-p and min-p, of the drafter's own columns,
            that the target samples in: more drafts are then accepted (docs/benchmarks.md). The
            output has the same distribution either way.
        method: of `rdk_cuda.verify`: "token", or "block", which accepts at least as many drafts on
            average.
        vocabulary: the drafter's own tokens. Accepted tokens outside it count as out of
            vocabulary.
        dynamic_tokens: a source such as `rdk_cuda.RecentTokens`. It is called before each drafted
            token with the sequences so far, including the drafts of this step, and returns target
            ids `[B, C]`, -1 for none. They can be drafted in addition to what the affinity reaches
            (DESIGN section 2). The sequences are the decoder's own lists: a source must not change
            or keep them. The drafter has to return its hidden state, which a source with
            `reads_hidden`, such as `rdk_cuda.ScreenedTokens`, gets as `hidden`, `[B, d]`.
        full_head: weight `[V_t, d]` and bias `[V_t]` (or None) for the logits of dynamic tokens; or
            what gives these, as `rdk_cuda.drafter.LiftedHead`: called with hidden states
            `[B, d]` and tokens `[B, C]`, with `size` V_t. None: the drafter's own, which a
            `HuggingFaceModel` has.

    Raises:
        ValueError: sizes that do not agree.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from rdk_cuda.integrations.huggingface import HuggingFaceModel
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> decoder = SpeculativeDecoder(HuggingFaceModel(model), HuggingFaceModel(model))
        >>> tokens, statistics, _ = decoder.generate([[5, 3], [7]], max_new_tokens=9, seeds=[1, 2])
        >>> statistics.tokens
        18
    """

    def __init__(
        self,
        target: CausalModel,
        drafter: CausalModel | None = None,
        affinity: Affinity | None = None,
        *,
        draft_length: int = 4,
        draft_temperature: float | None = None,
        truncate_drafts: bool = True,
        method: Method = "token",
        vocabulary: Vocabulary | None = None,
        dynamic_tokens: DynamicTokens | None = None,
        full_head: FullHead | None = None,
    ) -> None:
        if affinity is None:
            affinity = Affinity.intersection(Vocabulary.identity(target.vocabulary_size))
        refuse_other_than_affinity("SpeculativeDecoder", affinity)
        if drafter is target:
            raise ValueError(
                "SpeculativeDecoder: target and drafter are one object, but each has to read its "
                "own tokens; wrap the model twice"
            )
        sizes = affinity.target_size, affinity.draft_size
        found = target.vocabulary_size, drafter.vocabulary_size if drafter else sizes[1]
        if found != sizes:
            raise ValueError(
                f"SpeculativeDecoder: target and drafter predict {found[0]} and {found[1]} tokens, "
                f"but the affinity maps {sizes[1]} drafter tokens to {sizes[0]} target tokens; "
                "pass the affinity of this pair"
            )
        draft_length = whole_number("SpeculativeDecoder", "draft_length", draft_length)
        if draft_length < 0 or (drafter is None) != (draft_length == 0):
            raise ValueError(
                f"SpeculativeDecoder: draft_length is {draft_length}; needs at least 1 with a "
                "drafter, and 0 without one"
            )
        if draft_temperature is not None and not 0 <= draft_temperature < math.inf:
            raise ValueError(
                f"SpeculativeDecoder: draft_temperature is {draft_temperature}; needs to be finite "
                "and at least 0, or None for each sequence's own"
            )
        self.target, self.drafter = target, drafter
        self._state_drafter = drafter if isinstance(drafter, StateDrafter) else None
        self.affinity = affinity.to(target.device)
        if method not in METHODS:
            raise ValueError(
                f'SpeculativeDecoder: method is {method!r}; needs to be "token" or "block"'
            )
        self.draft_length, self.draft_temperature = draft_length, draft_temperature
        self.truncate_drafts = truncate_drafts
        self.method: Method = method
        self.dynamic_tokens = dynamic_tokens
        self.full_head = self._checked_full_head(full_head)
        self._pruned = set() if vocabulary is None else set(vocabulary.pruned.tolist())

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: Integers,
        temperature: Numbers = 1.0,
        top_k: Integers | None = None,
        top_p: Numbers | None = None,
        min_p: Numbers | None = None,
        seeds: Integers | None = None,
        eos: int | Collection[int] | Sequence[Collection[int]] | None = None,
        on_tokens: Callable[[int, list[int], list[Kind]], None] | None = None,
        process: Process | None = None,
        allowed: Allowed | None = None,
        logprobs: Literal["processed", "raw"] | None = None,
        stop: Stop | None = None,
    ) -> Generation:
        """Continue every prompt up to one of its end tokens or to `max_new_tokens`.

        Args:
            prompts: B lists of target ids, none empty.
            max_new_tokens, temperature: one for all or one each; temperature 0 is exactly greedy.
            top_k, top_p, min_p: of the target, one for all or one each, as of `rdk_cuda.verify`.
                They act on what `process` returns.
            seeds: one each, so that a sequence's output depends on no other; or one int, from
                which each sequence gets its own. None: from torch's default generator.
            eos: an end token, a set of them, or a list with one set for each sequence.
            on_tokens: called with (sequence, tokens, kinds) as soon as they are decided.
            process: changes the target's logits, for example by truncation or a penalty. The
                output then has the distribution of what it returns. Each row that it returns has
                to be a function of that row and the tokens before it alone.
            allowed: says which tokens a grammar allows.
            logprobs: return the log-probability of each token: of the "processed" distribution that
                it was drawn from (0 at temperature 0), or of the "raw" logits at temperature 1
                without limits and mask, as `process` returns them.
            stop: called after every decided token with the sequence's number and all its tokens,
                prompt included. If it returns True, the sequence ends there.

        Raises:
            ValueError: an argument that does not fit.
            RuntimeError: the target's logits are no distribution: NaN or +inf, or none finite.
        """
        batch = Batch.of(
            prompts,
            max_new_tokens,
            temperature,
            self.draft_temperature,
            seeds,
            eos,
            self.affinity.device,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
        )
        # The last token is decided but never read.
        longest = max((s.full_length - 1 for s in batch.sequences), default=0)
        if longest > self.target.context:
            raise ValueError(
                f"SpeculativeDecoder.generate: prompt and max_new_tokens take {longest} tokens of "
                f"the target's context of {self.target.context:.0f}; shorten one of them"
            )
        statistics = Statistics.empty(self.draft_length)
        all_logprobs: list[list[float]] = [[] for _ in prompts]
        models = [model for model in (self.target, self.drafter) if model is not None]
        for model in models:
            model.reset(len(prompts))
        while going_on := sum(s.room > 0 for s in batch.sequences):
            with Range("step", going_on):
                decided, own_logprobs = self._step(batch, process, allowed, logprobs)
                for b, (s, new) in enumerate(zip(batch.sequences, decided, strict=True)):
                    if s.room:
                        ends = None if stop is None else partial(stop, b)
                        drafted = len(s.context) - s.length
                        kinds = self._kinds(new, drafted)[: s.extend(new, ends)]
                        statistics.count(kinds, drafted)
                        all_logprobs[b] += own_logprobs[b][: len(kinds)]
                        if on_tokens is not None:
                            on_tokens(b, new[: len(kinds)], kinds)
                # The newest token is decided but not read: the next pass begins with it.
                read = [s.length - 1 if s.room else 0 for s in batch.sequences]
                with Range("cache update", len(read)):
                    for model in models:
                        model.rollback(read)
        return Generation([s.new for s in batch.sequences], statistics, all_logprobs)

    def _step(
        self,
        batch: Batch,
        process: Process | None,
        allowed: Allowed | None,
        logprobs: Literal["processed", "raw"] | None,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """What every sequence gains: its accepted drafts and the token that the target adds.

        With their log-probabilities, if asked for; otherwise these are empty.
        """
        draft = self._draft(batch)
        drafted = [len(s.context) - s.length for s in batch.sequences]
        keep = [n + 1 if s.room else 0 for s, n in zip(batch.sequences, drafted, strict=True)]
        with Range("target forward", sum(keep)):
            output = _feed(self.target, batch.sequences, keep)
        logits = output.logits if process is None else process(batch.sequences, output.logits)
        truncation: dict[str, Any] = dict(batch.limits)
        if allowed is not None:
            words = allowed(batch.sequences, logits.shape[1])
            truncation["allowed"] = words.to(logits.device)
        with Range("verify", sum(drafted)):
            verified = functional.verify(
                logits,
                draft,
                self.affinity,
                batch.temperature,
                logprobs=logprobs,
                **truncation,
                method=self.method,
            )
            rows, lengths = verified.tokens.tolist(), verified.num_accepted.tolist()
        mark("accepted", sum(lengths))
        if self._state_drafter is not None:
            if output.states is None:
                raise ValueError(
                    "SpeculativeDecoder: the drafter reads the target's hidden states, but its "
                    "feed() returned none (HuggingFaceModel: state_layers=drafter.state_layers)"
                )
            self._state_drafter.observe(output.states)
        tokens = [row[: length + 1] for row, length in zip(rows, lengths, strict=True)]
        return tokens, verified.logprobs.tolist() if logprobs else [[] for _ in tokens]

    def _draft(self, batch: Batch) -> Draft:
        """Up to K drafts for each sequence that has room for them and for the target's token."""
        sequences, device = batch.sequences, self.affinity.device
        positions = torch.tensor([s.length for s in sequences], device=device, dtype=torch.int64)
        step: dict[str, Any] = {"seeds": batch.seeds, "positions": positions}
        link = {**step, "temperature": batch.draft_temperature}
        if self.truncate_drafts:
            link |= batch.limits
        context = self.drafter.context if self.drafter else 0
        # One place is left for the target, and the drafter has to read all that precedes a draft.
        places = [
            int(min(self.draft_length, s.room - 1, context - s.length + 1)) for s in sequences
        ]
        if self._state_drafter is not None:
            known = zip(places, self._state_drafter.observed, sequences, strict=True)
            places = [n if 0 < s.length - 1 <= observed else 0 for n, observed, s in known]
        drafts: list[Draft] = []
        memory: Tensor | None = None
        for place in range(max(places, default=0)):
            keep = [
                int(place < most and len(s.context) == s.length + place)
                for s, most in zip(sequences, places, strict=True)
            ]
            if not any(keep):
                break
            with Range("drafter forward", sum(keep)):
                output = _feed(cast(CausalModel, self.drafter), sequences, keep)
                if memory is None:
                    memory = batch.draft_logits(output.logits, max(places))
                here = memory[:, place].copy_(output.logits[:, 0])
            dynamic = self._dynamic(sequences, output.hidden, here)
            with Range("draft", sum(keep)):
                drafted = functional.draft(here, self.affinity, **link, **dynamic)
            drafts.append(replace(drafted, logits=None))  # all of them are in `memory`
            link = {"after": drafts[-1]}
            for b, token in enumerate(drafted.tokens[:, 0].tolist()):
                if keep[b] and token >= 0:  # -1, no distribution here: this draft ends
                    sequences[b].context.append(token)
        own = [s.drafts for s in sequences]
        longest = max(map(len, own), default=0)
        padded = [tokens + [-1] * (longest - len(tokens)) for tokens in own]
        tokens = torch.tensor(padded, dtype=torch.int64, device=device)
        if memory is None or longest == 0:
            return Draft.without_distribution(tokens, **step)
        joined = Draft.join(drafts[:longest])
        return replace(joined, tokens=tokens, logits=memory[:, :longest])

    def _dynamic(
        self, sequences: Sequence[Continuation], hidden: Tensor | None, logits: Tensor
    ) -> dict[str, Any]:
        if self.dynamic_tokens is None or self.full_head is None:
            return {}
        if hidden is None:
            raise ValueError(
                "SpeculativeDecoder: dynamic_tokens need a drafter that gives hidden states, but "
                "its feed() returned none (HuggingFaceModel: return_hidden=True)"
            )
        tokens, gathered = dynamic_columns(
            self.dynamic_tokens, self.full_head, [s.context for s in sequences], hidden[:, 0]
        )
        return {"dynamic_tokens": tokens.to(logits.device), "dynamic_logits": gathered.to(logits)}

    def _checked_full_head(self, full_head: FullHead | None) -> FullHead | None:
        if self.dynamic_tokens is None:
            if full_head is not None:
                raise ValueError(
                    "SpeculativeDecoder: full_head is for the logits of dynamic tokens; give "
                    "dynamic_tokens too, or leave it out"
                )
            return None
        if full_head is None:
            full_head = getattr(self.drafter, "full_head", None)
        if full_head is None:
            raise ValueError(
                "SpeculativeDecoder: dynamic_tokens need the full head for their logits, and the "
                "drafter has none of its own; pass full_head=(weight [V_t, d], bias or None)"
            )
        rows = full_head[0].shape[0] if isinstance(full_head, tuple) else full_head.size
        if rows != self.affinity.target_size:
            raise ValueError(
                f"SpeculativeDecoder: full_head has {rows} rows; needs one for each of the "
                f"{self.affinity.target_size} target tokens"
            )
        return full_head

    def _kinds(self, new: Sequence[int], drafted: int) -> list[Kind]:
        kinds: list[Kind] = [
            "out_of_vocabulary" if t in self._pruned else "accepted" for t in new[:-1]
        ]
        return [*kinds, "resampled" if len(kinds) < drafted else "bonus"]


def _feed(model: CausalModel, sequences: Sequence[Continuation], keep: Sequence[int]) -> Output:
    """Let a model read what it has not read yet, in sequences where a prediction is wanted."""
    unread = [
        s.context[read:] if kept else []
        for s, read, kept in zip(sequences, model.lengths, keep, strict=True)
    ]
    return model.feed(unread, keep)
