"""A target, its drafter and their tokenizer: two models, or one and a drafter on its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import torch

from rdk_cuda.integrations.eagle3 import Eagle3Checkpoint, Eagle3Drafter, read_drafts
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.placement import weight_of

from ..calibration.lifted import lift_rows, refitted_rows, shifted_rows
from ..calibration.methods import LIFTED, Method
from ..calibration.reading import Read
from ..calibration.record import read_models
from ..calibration.recording import Each, Recording
from ..drafter import FullHead, LiftedRows
from ..evaluation.speed import Times, cached_pass, finish, measure_model_times, measure_times
from ..vocabulary import Vocabulary

TIMING_SECONDS = 1.0  # at least; a load that changes shows in the spread


def head_size(model: Any) -> int:
    """How many tokens a model predicts."""
    return int(model.get_output_embeddings().weight.shape[0])


def readable(model: Any) -> int:
    """How many tokens a model can read; a million where it does not say."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 20))


@dataclass(frozen=True)
class ModelPair:
    """Two language models.

    Attributes:
        target, drafter: Hugging Face causal language models.
        tokenizer: of both.
        names: of the two, for the report.
        drafter_dtype: of the drafter's files, and of what is written of it.
        kept: the tokens that the drafter's head was trained for; None: all.
        lifted: what stands for rows that the drafter lacks.
        rows: where the rows of pruned tokens are from, if they are not the drafter's own.
    """

    target: Any
    drafter: Any
    tokenizer: Any
    names: tuple[str, str]
    drafter_dtype: torch.dtype = torch.float32

    kept: ClassVar[None] = None
    lifted: ClassVar[None] = None
    rows: ClassVar[str] = ""

    @property
    def vocabulary_size(self) -> int:
        """V_t, the width of the target's logits."""
        return head_size(self.target)

    @property
    def context(self) -> int:
        """How many tokens both can read."""
        return min(map(readable, (self.target, self.drafter)))

    def read(self, draft_length: int) -> Read:
        """What both say of a text, at every position."""
        return read_models(self.target, self.drafter)

    def how_read(self, draft_length: int) -> str:
        """What `read` depends on besides the models, in words."""
        return ""

    def with_rows(self, recording: Recording, each: Each | None = None) -> ModelPair:
        """Itself: a language model has a row for each token."""
        return self

    @property
    def drafter_head(self) -> FullHead:
        """The drafter's full head: weight `[V_t, d]`, and bias `[V_t]` or None; CPU, float32."""
        head = self.drafter.get_output_embeddings()
        bias = getattr(head, "bias", None)
        weight = head.weight.detach().float().cpu()
        return weight, None if bias is None else bias.detach().float().cpu()

    @property
    def body(self) -> list[torch.nn.Parameter]:
        """The drafter's weights below its head, without its embeddings, which a head may share."""
        embeddings = {id(part) for part in self.drafter.get_input_embeddings().parameters()}
        return [part for part in self.drafter.base_model.parameters() if id(part) not in embeddings]

    @property
    def whole(self) -> Method:
        """The drafter with all of its `drafter_head`."""
        return Method.full(self.drafter_head)

    def drafts_every(self, draft_length: int) -> int:
        """Positions from one draft's begin to the next in what is read."""
        return 1

    def times(self, context: list[int], draft_length: int) -> Times:
        """Of the models' parts on this machine, behind a context."""
        ids = torch.tensor(context, dtype=torch.int64, device="cpu")
        return measure_model_times(
            self.target, self.drafter, ids, draft_length, seconds=TIMING_SECONDS
        )

    @property
    def saved_drafter(self) -> Any:
        """What `save_drafter` writes of the drafter itself."""
        return self.drafter.to(self.drafter_dtype)


@dataclass(frozen=True)
class StatePair:
    """A target and an `Eagle3Checkpoint`, a drafter on its states.

    Attributes:
        target, tokenizer, names, drafter_dtype: as of `ModelPair`, and so are the methods.
        lifted: what stands for the rows that the drafter lacks, once there is a recording.
    """

    target: Any
    drafter: Eagle3Checkpoint
    tokenizer: Any
    names: tuple[str, str]
    drafter_dtype: torch.dtype = torch.float32
    lifted: LiftedRows | None = None

    @property
    def vocabulary_size(self) -> int:
        """As of `ModelPair`."""
        return head_size(self.target)

    @cached_property
    def drafter_head(self) -> FullHead:
        """With lifted rows where the drafter has none."""
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
    def body(self) -> list[torch.nn.Parameter]:
        """As of `ModelPair`."""
        network = self.drafter.network
        others = {id(network.embed_tokens.weight), id(network.lm_head.weight)}
        return [part for part in network.parameters() if id(part) not in others]

    @property
    def _own_rows(self) -> torch.Tensor:
        """`[V_d, d]`, of its own head, or of the target's in the order of its vocabulary."""
        own: torch.Tensor = self.drafter.network.lm_head.weight.detach()
        return own

    @property
    def _target_head(self) -> torch.Tensor:
        return weight_of(self.target.get_output_embeddings())

    def with_rows(self, recording: Recording, each: Each | None = None) -> StatePair:
        """The pair, with lifted rows for the tokens that the drafter was trained without."""
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
        """As of `ModelPair`."""
        full = Method.full(self.drafter_head)
        return full if self.lifted is None else replace(full, name=LIFTED)

    @property
    def rows(self) -> str:
        """As of `ModelPair`."""
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
        """As of `ModelPair`."""
        own = self.drafter.vocabulary
        return None if own.draft_size == own.target_size else own

    @property
    def saved_drafter(self) -> Eagle3Checkpoint:
        """As of `ModelPair`."""
        return self.drafter

    @property
    def context(self) -> int:
        """How many tokens the target can read; a drafter drafts beyond what it was trained with."""
        return readable(self.target)

    def drafting(
        self, head: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> Eagle3Drafter:
        """The drafter as the decoder runs it, with its own head if none is given."""
        layers = self.target.config.get_text_config().num_hidden_layers
        return Eagle3Drafter(self.drafter.network, layers, head=head, head_bias=bias)

    def read(self, draft_length: int) -> Read:
        """What both say of a text, at the places of drafts."""
        # With a head of one row: here nobody asks for logits.
        drafter = self.drafting(self.drafter.network.lm_head.weight.detach()[:1])
        target = HuggingFaceModel(self.target, state_layers=drafter.state_layers)
        return read_drafts(target, drafter, draft_length)

    def how_read(self, draft_length: int) -> str:
        """As of `ModelPair`."""
        return f", {draft_length} tokens a draft"

    def drafts_every(self, draft_length: int) -> int:
        """Each position is read at one place of a draft."""
        return draft_length

    def times(self, context: list[int], draft_length: int) -> Times:
        """Of the parts on this machine; the head's, of its own rows."""
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
                seconds=TIMING_SECONDS,
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


Pair: TypeAlias = ModelPair | StatePair
"""A target, its drafter and their tokenizer, whatever kind of drafter it is."""
