"""A target, its drafter and their tokenizer: one class for each kind of drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...affinity import Affinity
from ...decoding import TextDrafter
from ...decoding.models import Read, Reading
from ...drafter import FullHead, LiftedRows
from ...integrations.eagle3 import Eagle3Checkpoint, Eagle3Drafter, read_drafts, unrolled_read
from ...integrations.huggingface import HuggingFaceModel
from ...integrations.huggingface.placement import weight_of
from ...vocabulary import Vocabulary
from ...vocabulary.token_bytes import TokenBytes
from ..timing import Times, cached_pass, finish, measure_model_times, measure_times

TIMING_SECONDS = 1.0  # at least; a load that changes shows in the spread


def head_size(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def readable(model: Any) -> int:
    """How many tokens a model can read; a million where it does not say."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 20))


def read_models(target: Any, drafter: Any, *, train: bool = False) -> Read:
    """Reads with two Hugging Face models of one vocabulary, each on its own device.

    With `train` the drafter's states have a gradient, where gradients are enabled.

    The drafter's logits are taken to be its LM head applied to its last hidden state;
    `rdk_cuda.integrations.huggingface.HuggingFaceModel` checks that of a model. A model in training
    mode is refused, since its dropout would be recorded.
    """
    for name, model in (("target", target), ("drafter", drafter)):
        if model.training:
            raise ValueError(
                f"read_models: {name}, a {type(model).__name__}, is in training mode; call "
                f"{name}.eval() first"
            )

    def read(ids: Tensor) -> Reading:
        with torch.no_grad():
            logits = target(input_ids=ids.to(target.device), use_cache=False).logits
        with torch.set_grad_enabled(train and torch.is_grad_enabled()):
            # Without its LM head, whose logits are not needed.
            states = drafter.base_model(input_ids=ids.to(drafter.device), use_cache=False)
        return Reading(logits, states.last_hidden_state)

    return read


@dataclass(frozen=True)
class Pair:
    """A target and a drafter with a full head. A kind of drafter says here how both are read.

    Attributes:
        target: a Hugging Face causal language model.
        drafter: of its kind; `saved_drafter` is what `save_drafter` writes of it.
        tokenizer: of both.
        names: of the two, for the report.
        drafter_dtype: of the drafter's files, and of what is written of it.
        lifted: what stands for rows that the drafter lacks, once they are lifted.
    """

    target: Any
    drafter: Any
    tokenizer: Any
    names: tuple[str, str]
    drafter_dtype: torch.dtype = torch.float32
    lifted: LiftedRows | None = None

    @property
    def vocabulary_size(self) -> int:
        return head_size(self.target)

    @property
    def context(self) -> int:
        return min(map(readable, (self.target, self.drafter)))

    def read(self, draft_length: int) -> Read:
        return read_models(self.target, self.drafter)

    def training_read(self, draft_length: int) -> Read:
        return read_models(self.target, self.drafter, train=True)

    def how_read(self, draft_length: int) -> str:
        return ""

    def drafts_every(self, draft_length: int) -> int:
        return 1

    @property
    def drafter_head(self) -> FullHead:
        """How the head is applied: weight `[V_t, d]`, and bias `[V_t]` or None; CPU, float32."""
        head = self.drafter.get_output_embeddings()
        bias = getattr(head, "bias", None)
        weight = head.weight.detach().float().cpu()
        return weight, None if bias is None else bias.detach().float().cpu()

    @property
    def kept(self) -> Vocabulary | None:
        """The tokens that the drafter's head was trained for; None: all."""
        return None

    @property
    def network(self) -> torch.nn.Module:
        network: torch.nn.Module = self.drafter
        return network

    @property
    def body(self) -> list[torch.nn.Parameter]:
        embeddings = {id(part) for part in self.drafter.get_input_embeddings().parameters()}
        return [part for part in self.drafter.base_model.parameters() if id(part) not in embeddings]

    def times(self, context: list[int], draft_length: int) -> Times:
        ids = torch.tensor(context, dtype=torch.int64, device="cpu")
        return measure_model_times(
            self.target, self.drafter, ids, draft_length, seconds=TIMING_SECONDS
        )

    @property
    def saved_drafter(self) -> Any:
        return self.drafter.to(self.drafter_dtype)


class ModelPair(Pair):
    """Two language models."""


@dataclass(frozen=True)
class StatePair(Pair):
    """A target and an `Eagle3Checkpoint` or `MtpCheckpoint`, a drafter on its states."""

    drafter: Eagle3Checkpoint

    @cached_property
    def drafter_head(self) -> FullHead:
        if self.lifted is None:
            rows = self.drafter.full_head(self.target)
            if rows is None:
                raise ValueError("StatePair: pruned tokens have no rows; needs `lifted`")
            bias: Tensor | None = self.drafter.network.lm_head.bias
            return rows.float().cpu(), None if bias is None else bias.float().cpu()
        ids, rows = self.drafter.vocabulary.draft_ids, self.lifted.rows(self.target_head)
        rows[ids.to(rows.device)] = self.own_rows.to(rows)
        bias = self.lifted.bias.index_fill(0, ids, 0.0)
        return rows.float().cpu(), bias

    @property
    def network(self) -> torch.nn.Module:
        return self.drafter.network

    @property
    def body(self) -> list[torch.nn.Parameter]:
        others = "embed_tokens.weight", "lm_head.weight"
        named = self.drafter.network.named_parameters()
        return [part for name, part in named if name not in others]

    @property
    def own_rows(self) -> Tensor:
        """`[V_d, d]`, of its own head, or of the target's in the order of its vocabulary."""
        own: Tensor = self.drafter.network.lm_head.weight.detach()
        return own

    @property
    def target_head(self) -> Tensor:
        """`[V_t, d_t]`."""
        return weight_of(self.target.get_output_embeddings())

    @property
    def kept(self) -> Vocabulary | None:
        own = self.drafter.vocabulary
        return None if own.draft_size == own.target_size else own

    @property
    def saved_drafter(self) -> Eagle3Checkpoint:
        return self.drafter

    @property
    def context(self) -> int:
        """How many tokens the target can read; a drafter drafts beyond what it was trained with."""
        return readable(self.target)

    def drafting(self, head: Tensor | None = None, bias: Tensor | None = None) -> Eagle3Drafter:
        layers = self.target.config.get_text_config().num_hidden_layers
        return Eagle3Drafter(self.drafter.network, layers, head=head, head_bias=bias)

    def _both(self) -> tuple[HuggingFaceModel, Eagle3Drafter]:
        drafter = self.drafting(self.own_rows[:1])  # one row: here nobody asks for logits
        return HuggingFaceModel(self.target, state_layers=drafter.state_layers), drafter

    def read(self, draft_length: int) -> Read:
        return read_drafts(*self._both(), draft_length)

    def training_read(self, draft_length: int) -> Read:
        return unrolled_read(self.target, self.drafter.network, draft_length)

    def how_read(self, draft_length: int) -> str:
        return f", {draft_length} tokens a draft"

    def drafts_every(self, draft_length: int) -> int:
        return draft_length

    def times(self, context: list[int], draft_length: int) -> Times:
        target, head = self.target, self.drafter.network.lm_head.weight
        hidden = torch.zeros(1, head.shape[1], dtype=head.dtype, device=head.device)

        def own_head() -> None:
            torch.nn.functional.linear(hidden, head)
            finish(target)

        with torch.no_grad():
            return measure_times(
                draft_length,
                target=cached_pass(target, torch.tensor(context, dtype=torch.int64, device="cpu")),
                drafter_body=self._body(context),
                head=own_head,
                head_weights=head.numel(),
                seconds=TIMING_SECONDS,
            )

    def _body(self, context: list[int]) -> Callable[[], None]:
        """The drafter's pass over one token, almost without a head; the same one each time."""
        target, drafter = self._both()
        target.reset(1)
        states = target.feed([context], [1]).states
        assert states is not None  # it was told which layers
        drafter.reset(1)
        drafter.observe([states[0][:-1]])

        def run() -> None:
            drafter.feed([context[drafter.lengths[0] :]], [1])
            drafter.rollback([len(context) - 1])
            finish(self.target)

        return run


@dataclass(frozen=True)
class TextPair(ModelPair):
    """Two language models with a tokenizer each: they have the text in common.

    Attributes:
        tokenizer, drafter_tokenizer: the target's and the drafter's own.
        text: the drafter as it reads the target's tokens, with a head of one row: here nobody asks
            for logits.

    Raises:
        TypeError, ValueError: as `TextDrafter`.
    """

    drafter_tokenizer: Any = None
    text: TextDrafter = field(init=False)

    def __post_init__(self) -> None:
        head = self.drafter.get_output_embeddings().weight.detach()
        model = HuggingFaceModel(self.drafter, head=head[:1])
        own = Affinity.intersection(Vocabulary([0], head_size(self.drafter)))
        text = TextDrafter(model, self.drafter_tokenizer, self.tokenizer, own=own)
        object.__setattr__(self, "text", text)

    @property
    def context(self) -> int:
        """How many of the target's tokens both can read; the drafter's may be twice as many."""
        return min(readable(self.target), readable(self.drafter) // 2)

    def read(self, draft_length: int) -> Read:
        @torch.no_grad()
        def read(ids: Tensor) -> Reading:
            logits = self.target(input_ids=ids.to(self.target.device), use_cache=False).logits
            self.text.reset(len(ids))
            states = [self._state(column) for column in ids.T.tolist()]
            self.text.reset(0)
            return Reading(logits[:, 1:], torch.stack(states[1:], 1))

        return read

    def _state(self, tokens: Sequence[int]) -> Tensor:
        """`[B, d]` behind the next token of each text; 0 where the drafter cannot read it."""
        output = self.text.feed([[token] for token in tokens], [1] * len(tokens))
        assert output.hidden is not None  # the model was given a head
        return output.hidden[:, 0].masked_fill(output.logits[:, 0, :1].isnan(), 0.0)

    def how_read(self, draft_length: int) -> str:
        return ", each in its own tokens"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.between(*self._known, **self._sizes)

    @cached_property
    def by_prefix(self) -> Affinity:
        return Affinity.between(*self._known, **self._sizes)

    @property
    def _known(self) -> tuple[TokenBytes, TokenBytes]:
        return self.text.tokens.known, self.text.target_tokens.known

    @property
    def _sizes(self) -> dict[str, Any]:
        return {"draft_size": head_size(self.drafter), "target_size": self.vocabulary_size}

    def times(self, context: list[int], draft_length: int) -> Times:
        spelled = (self.text.target_tokens.spellings[id] for id in context)
        own = self.text.tokens.encode(b"".join(t for t in spelled if isinstance(t, bytes)))
        return measure_model_times(
            self.target,
            self.drafter,
            torch.tensor(context, dtype=torch.int64, device="cpu"),
            draft_length,
            drafter_context=torch.tensor(own or [0], dtype=torch.int64, device="cpu"),
            seconds=TIMING_SECONDS,
        )
