"""A target, its drafter and their tokenizer: two models, or one and a drafter on its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch

from rdk_cuda.integrations.eagle3 import Eagle3Checkpoint, Eagle3Drafter, read_drafts
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.placement import weight_of

from ..calibration.lifted import lift_rows, refitted_rows, shifted_rows
from ..calibration.methods import LIFTED, Method
from ..calibration.recording import Each, Read, Recording, Window, read_models
from ..drafter import FullHead, LiftedRows
from ..evaluation import drafters, evaluate_models
from ..evaluation.rows import Row
from ..evaluation.speed import Times, cached_pass, finish, measure_times
from ..vocabulary import Vocabulary

__all__ = ["ModelPair", "Pair", "StatePair"]


class Pair(Protocol):
    """A target, its drafter and their tokenizer, whatever kind of drafter it is."""

    @property
    def target(self) -> Any:
        """A Hugging Face causal language model."""

    @property
    def drafter(self) -> Any:
        """Another one, or an `Eagle3Checkpoint`."""

    @property
    def tokenizer(self) -> Any:
        """Of both."""

    @property
    def names(self) -> tuple[str, str]:
        """Of the two, for the report."""

    @property
    def eos(self) -> frozenset[int]:
        """The target's end tokens."""

    @property
    def drafter_dtype(self) -> torch.dtype:
        """Of the drafter's files, and of what is written of it."""

    @property
    def vocabulary_size(self) -> int:
        """V_t, the width of the target's logits."""

    @property
    def context(self) -> int:
        """How many tokens can be read; a million where the models do not say."""

    @property
    def kept(self) -> Vocabulary | None:
        """The tokens that the drafter's head was trained for; None: all."""

    @property
    def lifted(self) -> LiftedRows | None:
        """What stands for rows that the drafter lacks."""

    @property
    def rows(self) -> str:
        """Where the rows of pruned tokens are from, if they are not the drafter's own."""

    def with_rows(self, recording: Recording, each: Each | None = None) -> Pair:
        """The pair, with rows for the tokens that the drafter's head lacks."""

    @property
    def drafter_head(self) -> FullHead:
        """The drafter's full head: weight `[V_t, d]`, and bias `[V_t]` or None; CPU, float32."""

    @property
    def whole(self) -> Method:
        """The drafter with all of its `drafter_head`."""

    @property
    def saved_drafter(self) -> Any:
        """What `save_drafter` writes of the drafter itself."""

    def read(self, draft_length: int) -> Read:
        """What both say of a text; `draft_length` matters to drafters on the target's states."""

    def how_read(self, draft_length: int) -> str:
        """What `read` depends on besides the models, in words."""

    def evaluate(
        self,
        methods: Mapping[float, Sequence[Method]],
        windows: Sequence[Window],
        *,
        draft_length: int,
        **options: Any,
    ) -> list[Row]:
        """`rdk_cuda.evaluation.evaluate` of the methods, with the pair's times."""


def head_size(model: Any) -> int:
    """How many tokens a model predicts."""
    return int(model.get_output_embeddings().weight.shape[0])


def readable(model: Any) -> int:
    """How many tokens a model can read; a million where it does not say."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 20))


@dataclass(frozen=True)
class ModelPair:
    """The `Pair` of two language models.

    Attributes:
        recent: how many of the last tokens the drafter sees, besides the first; None: all.
    """

    target: Any
    drafter: Any
    tokenizer: Any
    eos: frozenset[int]
    names: tuple[str, str]
    drafter_dtype: torch.dtype = torch.float32
    recent: int | None = None

    kept: ClassVar[None] = None
    lifted: ClassVar[None] = None
    rows: ClassVar[str] = ""

    @property
    def vocabulary_size(self) -> int:
        """As of `Pair`."""
        return head_size(self.target)

    @property
    def context(self) -> int:
        """What both can read."""
        return min(map(readable, (self.target, self.drafter)))

    @property
    def drafter_head(self) -> FullHead:
        """As of `Pair`."""
        head = self.drafter.get_output_embeddings()
        bias = getattr(head, "bias", None)
        weight = head.weight.detach().float().cpu()
        return weight, None if bias is None else bias.detach().float().cpu()

    @property
    def saved_drafter(self) -> Any:
        """As of `Pair`."""
        return self.drafter.to(self.drafter_dtype)

    def with_rows(self, recording: Recording, each: Each | None = None) -> ModelPair:
        """Itself: a language model has a row for each token."""
        return self

    @property
    def whole(self) -> Method:
        """As of `Pair`."""
        return Method.full(self.drafter_head)

    def read(self, draft_length: int) -> Read:
        """As of `Pair`, at every position."""
        return read_models(self.target, self.drafter)

    def how_read(self, draft_length: int) -> str:
        """As of `Pair`: on nothing."""
        return ""

    def evaluate(
        self,
        methods: Mapping[float, Sequence[Method]],
        windows: Sequence[Window],
        *,
        draft_length: int,
        **options: Any,
    ) -> list[Row]:
        """As of `Pair`."""
        return evaluate_models(
            self.target,
            self.drafter,
            self.drafter_head,
            methods,
            windows,
            draft_length=draft_length,
            head_dtype=self.drafter_dtype,
            **options,
        )


@dataclass(frozen=True)
class StatePair:
    """The `Pair` of a target and an `Eagle3Checkpoint`, a drafter on its states.

    Attributes:
        lifted: what stands for the rows that the drafter lacks, once there is a recording.
    """

    target: Any
    drafter: Eagle3Checkpoint
    tokenizer: Any
    eos: frozenset[int]
    names: tuple[str, str]
    drafter_dtype: torch.dtype = torch.float32
    lifted: LiftedRows | None = None

    @property
    def vocabulary_size(self) -> int:
        """As of `Pair`."""
        return head_size(self.target)

    @cached_property
    def drafter_head(self) -> FullHead:
        """As of `Pair`; with lifted rows where the drafter has none."""
        if self.lifted is None:
            rows = self.drafter.full_head(self.target)
            if rows is None:
                raise ValueError("StatePair: pruned tokens have no rows; needs `lifted`")
            return rows.float().cpu(), None
        ids, rows = self.drafter.vocabulary.draft_ids, self.lifted.rows(self._target_head)
        rows[ids.to(rows.device)] = self._own_rows.to(rows)
        bias = self.lifted.bias.index_fill(0, ids, 0.0)
        return rows.float().cpu(), bias

    @property
    def _own_rows(self) -> torch.Tensor:
        """`[V_d, d]`, of its own head, or of the target's in the order of its vocabulary."""
        own: torch.Tensor = self.drafter.network.lm_head.weight.detach()
        return own

    @property
    def _target_head(self) -> torch.Tensor:
        return weight_of(self.target.get_output_embeddings())

    def with_rows(self, recording: Recording, each: Each | None = None) -> StatePair:
        """As of `Pair`: they are lifted from the target's, where it was trained without them."""
        if self.kept is None:
            return self
        known = self._target_head, self._own_rows, self.kept
        if self.drafter.full_head(self.target) is None:
            lifted = lift_rows(*known, recording.mean_probs[0])
        else:
            lifted = LiftedRows.of_the_target(known[0].shape[1], recording.mean_probs[0])
        lifted = shifted_rows(lifted, *known, recording.samples)
        return replace(self, lifted=refitted_rows(lifted, *known, recording.samples, each))

    @property
    def whole(self) -> Method:
        """As of `Pair`."""
        full = Method.full(self.drafter_head)
        return full if self.lifted is None else replace(full, name=LIFTED)

    @property
    def rows(self) -> str:
        """As of `Pair`."""
        own = "lm_head.weight" in self.drafter.shared
        of_the_target = "The rows of pruned tokens are the target's own, as are the drafter's"
        if self.lifted is None:
            return f"{of_the_target}." if own else ""
        constant, slope = self.lifted.shift.tolist()
        added = f"{constant:.3g} + {slope:.2g} times their log prior is added to their logits."
        origin = (
            of_the_target
            if own
            else "The drafter has no rows for the pruned tokens; they are lifted from the target's "
            f"(share of a row's square that the map misses: {self.lifted.unexplained:.0%})"
        )
        fitted = ", on a state that was fitted to what the target accepts"
        return f"{origin}{fitted if self.lifted.refitted else ''}; {added}"

    @property
    def kept(self) -> Vocabulary | None:
        """As of `Pair`."""
        own = self.drafter.vocabulary
        return None if own.draft_size == own.target_size else own

    @property
    def saved_drafter(self) -> Eagle3Checkpoint:
        """As of `Pair`."""
        return self.drafter

    @property
    def context(self) -> int:
        """How many tokens the target can read; a drafter drafts beyond what it was trained with."""
        return readable(self.target)

    def drafting(self, head: torch.Tensor | None = None) -> Eagle3Drafter:
        """The drafter as the decoder runs it, with its own head if none is given."""
        layers = self.target.config.get_text_config().num_hidden_layers
        return Eagle3Drafter(self.drafter.network, layers, head=head)

    def read(self, draft_length: int) -> Read:
        """As of `Pair`, at the places of drafts."""
        # With a head of one row: here nobody asks for logits.
        drafter = self.drafting(self.drafter.network.lm_head.weight.detach()[:1])
        target = HuggingFaceModel(self.target, state_layers=drafter.state_layers)
        return read_drafts(target, drafter, draft_length)

    def how_read(self, draft_length: int) -> str:
        """As of `Pair`."""
        return f", {draft_length} tokens a draft"

    def evaluate(
        self,
        methods: Mapping[float, Sequence[Method]],
        windows: Sequence[Window],
        *,
        draft_length: int,
        **options: Any,
    ) -> list[Row]:
        """As of `Pair`."""
        return drafters.evaluate(
            self.read(draft_length),
            self.drafter_head,
            methods,
            windows,
            draft_length=draft_length,
            drafts_every=draft_length,
            times=self._times(windows[0].ids[: -draft_length - 1], draft_length),
            head_dtype=self.drafter_dtype,
            **options,
        )

    def _times(self, context: list[int], draft_length: int) -> Times:
        target, body, head = self.target, self._body(context), self.drafter.network.lm_head.weight
        hidden = torch.zeros(1, head.shape[1], dtype=head.dtype, device=head.device)

        def own_head() -> None:
            torch.nn.functional.linear(hidden, head)
            finish(target)

        with torch.no_grad():
            return measure_times(
                draft_length,
                target=cached_pass(target, torch.tensor(context, dtype=torch.int64, device="cpu")),
                drafter_body=body,
                head=own_head,
                head_weights=head.numel(),
                seconds=drafters.TIMING_SECONDS,
            )

    def _body(self, context: list[int]) -> Callable[[], None]:
        """The drafter's pass over one token, almost without a head; the same one each time."""
        drafter = self.drafting(self.drafter.network.lm_head.weight.detach()[:1])
        target = HuggingFaceModel(self.target, state_layers=drafter.state_layers)
        target.reset(1)
        states = target.feed([context], [1]).states
        assert states is not None  # it was told which layers
        drafter.reset(1)
        drafter.observe([states[0][:-1]])

        def run() -> None:
            read = drafter.lengths[0]
            drafter.feed([context[read:]], [1])
            drafter.rollback([len(context) - 1])
            finish(self.target)

        return run
