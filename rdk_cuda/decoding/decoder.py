"""Batched speculative decoding on the public API, made of the parts beside this file.

In each step a drafter, or another `Proposer`, proposes tokens. The target reads them in one pass,
and a `Rule` says how many are accepted and which token follows. The output has exactly the target's
distribution at the requested temperature, whatever the drafter and the affinity are. They decide
only how many tokens a pass yields.

A part of your own may choose freely what it proposes, with one exception (DESIGN section 5):
whether a position is drafted, and its q, may not depend on the token drawn there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from .._ops.inputs import Integers, Numbers, refuse_other_than_affinity, takes_arrays, whole_number
from ..affinity import Affinity
from ..affinity.validation import CANONICAL
from ..dynamic_tokens import DynamicTokens, TokenHead
from ..functional import Method
from ..functional.step import method_number
from ..vocabulary import Vocabulary
from .exact_match import TextChain
from .generation import Batch, Generation, Statistics, Stop
from .lengths import Length
from .loop import Allowed, Hooks, OnTokens, Process, decode
from .models import CausalModel
from .proposers import DrafterChain, Proposer
from .rules import Logprobs, Rule, Verification
from .text import TextDrafter


class SpeculativeDecoder:
    """Continue a batch of prompts as `target` would, with `drafter` proposing.

    Args:
        target: predicts the V_t tokens of the output.
        drafter: predicts V_d tokens; None for the target alone, with `draft_length=0`, or with a
            `proposer`.
        affinity: V_d to V_t; None: the proposer's, if that draws with one, which no other may
            replace; `TextDrafter.between`; or that of two equal vocabularies.
        draft_length: K, the most tokens drafted in a step. A sequence near its end drafts fewer.
        length: ends drafts before that, such as `rdk_cuda.decoding.lengths.Product(0.3)`, by what
            was drafted so far; None: K tokens wherever there is room.
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
            (DESIGN section 2). A source may not change the sequences, which are the same lists in
            every call; `rdk_cuda.dynamic_tokens.Followed` says which sources read only what is new
            in them. The drafter has to return its hidden state, which a source with
            `reads_hidden`, such as `rdk_cuda.ScreenedTokens`, gets as `hidden`, `[B, d]`.
        full_head: weight `[V_t, d]` and bias `[V_t]` (or None) for the logits of dynamic tokens; or
            what gives these, as `rdk_cuda.drafter.LiftedHead`: called with hidden states
            `[B, d]` and tokens `[B, C]`, with `size` V_t. None: the drafter's own, which a
            `HuggingFaceModel` has.
        proposer: what proposes in place of a drafter; arguments that are a drafter's are left out.
        tokenizer, drafter_tokenizer: the target's and the drafter's, if they differ: the drafter
            becomes a `TextDrafter`. Where all of a batch is greedy it drafts by string-level exact
            match, and by the affinity otherwise (DESIGN section 2, "Different tokenizers").

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
        full_head: TokenHead | None = None,
        proposer: Proposer | None = None,
        length: Length | None = None,
        tokenizer: Any = None,
        drafter_tokenizer: Any = None,
    ) -> None:
        if drafter is not None and drafter is not target and drafter_tokenizer is not None:
            drafter = TextDrafter(drafter, drafter_tokenizer, tokenizer)
        elif (tokenizer, drafter_tokenizer) != (None, None):
            raise ValueError(
                "SpeculativeDecoder: tokenizer and drafter_tokenizer are for a drafter with a "
                "tokenizer of its own; give both with a drafter, or neither"
            )
        if affinity is None and isinstance(drafter, TextDrafter):
            affinity = drafter.between(target.vocabulary_size)
        own = None if proposer is None else proposer.drawn_with
        if affinity is None:
            affinity = own or Affinity.intersection(Vocabulary.identity(target.vocabulary_size))
        refuse_other_than_affinity("SpeculativeDecoder", affinity)
        if own is not None and not all(
            torch.equal(getattr(affinity, name).to(own.device), getattr(own, name))
            for name in CANONICAL
        ):
            raise ValueError(
                f"SpeculativeDecoder: affinity is {affinity}, and the proposer draws with another, "
                f"{own}; leave it out, since drafts are judged by the one they were drawn with"
            )
        if drafter is target:
            raise ValueError(
                "SpeculativeDecoder: target and drafter are one object; wrap the model twice"
            )
        for name, part in (("affinity", affinity), ("vocabulary", vocabulary)):
            if part is not None and part.target_size != target.vocabulary_size:
                raise ValueError(
                    f"SpeculativeDecoder: the target predicts {target.vocabulary_size} tokens, and "
                    f"{name} is of {part.target_size}; needs that of this pair"
                )
        draft_length = whole_number("SpeculativeDecoder", "draft_length", draft_length)
        if proposer is not None and [drafter, dynamic_tokens, full_head, length] != [None] * 4:
            raise ValueError(
                "SpeculativeDecoder: proposer stands in the place of drafter, dynamic_tokens, "
                "full_head and length; leave them out"
            )
        if proposer is None and (draft_length < 0 or (drafter is None) != (draft_length == 0)):
            raise ValueError(
                f"SpeculativeDecoder: draft_length is {draft_length}; needs at least 1 with a "
                "drafter, and 0 without one"
            )
        method_number("SpeculativeDecoder", method)  # refuses others
        self.target = target
        self.affinity = affinity.to(target.device)
        self.draft_length = draft_length if proposer is None else 0
        self.rule: Rule = Verification(self.affinity, method)
        self.proposer = proposer or Proposer()
        if drafter is not None:
            chain: Any = TextChain if isinstance(drafter, TextDrafter) else DrafterChain
            self.proposer = chain(
                drafter,
                self.affinity,
                draft_length=draft_length,
                length=length,
                draft_temperature=draft_temperature,
                truncate_drafts=truncate_drafts,
                dynamic_tokens=dynamic_tokens,
                full_head=full_head,
            )
        self._pruned = set() if vocabulary is None else set(vocabulary.pruned.tolist())

    @property
    def drafter(self) -> CausalModel | None:
        """The drafter, if there is one."""
        return self.proposer.drafter if isinstance(self.proposer, DrafterChain) else None

    @property
    def dynamic_tokens(self) -> DynamicTokens | None:
        """The source that the drafter's chain asks. It can be exchanged for another.

        Raises:
            ValueError: in a decoder that was made without one, and so has no head for it.
        """
        return self.proposer.dynamic_tokens if isinstance(self.proposer, DrafterChain) else None

    @dynamic_tokens.setter
    def dynamic_tokens(self, source: DynamicTokens | None) -> None:
        if isinstance(self.proposer, DrafterChain) and self.proposer.full_head is not None:
            self.proposer.dynamic_tokens = source
        elif source is not None:
            raise ValueError(
                "SpeculativeDecoder: dynamic_tokens need a decoder that was made with a full head"
            )

    @takes_arrays
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
        on_tokens: OnTokens | None = None,
        process: Process | None = None,
        allowed: Allowed | None = None,
        logprobs: Logprobs = None,
        stop: Stop | None = None,
    ) -> Generation:
        """Continue every prompt up to one of its end tokens or to `max_new_tokens`.

        Args:
            prompts: B lists of target ids, none empty.
            max_new_tokens, temperature: one for all or one each; temperature 0 is exactly greedy.
            top_k, top_p, min_p: of the target, one for all or one each, as in `rdk_cuda.verify`.
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
            seeds,
            eos,
            self.affinity.device,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
        )
        longest = max((s.full_length for s in batch.sequences), default=0)
        refuse_beyond_context(self.target, longest)
        hooks = Hooks(on_tokens, process, allowed, logprobs, stop)
        return self._decode(batch, hooks, Statistics.empty(self.draft_length))

    def _decode(self, batch: Batch, hooks: Hooks, statistics: Statistics) -> Generation:
        return decode(self.target, self.proposer, self.rule, batch, hooks, statistics, self._pruned)


def refuse_beyond_context(target: CausalModel, length: int) -> None:
    """Refuse sequences of this length, prompt included, if the target cannot remember so many.

    Raises:
        ValueError: it is beyond the context. The last token is decided but never read.
    """
    if length - 1 > target.context:
        raise ValueError(
            f"SpeculativeDecoder.generate: prompt and max_new_tokens take {length - 1} tokens of "
            f"the target's context of {target.context:.0f}; shorten one of them"
        )
