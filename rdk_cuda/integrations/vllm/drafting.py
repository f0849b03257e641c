"""vLLM's proposers with `rdk::draft` in place of their draw from the drafter's head.

A proposer's forward passes stay vLLM's. The logits are those of the small head, and what was drawn
from is returned where vLLM expects draft probabilities. It carries them, by request, to the step
that verifies, whatever the order of the batch is by then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer

from ... import _ops as operators
from ...affinity import Affinity
from ...calibration.drafter import PrunedDrafter
from ...calibration.lifted import LiftedHead
from ...dynamic_tokens import FullHead, dynamic_columns
from ...vocabulary import Vocabulary
from .configuration import UnsupportedConfigurationError
from .requests import Requests

__all__ = ["PROPOSERS", "DraftState", "DraftStateLayout"]


class DraftState(NamedTuple):
    """What N drafts were drawn from, as `rdk::verify` takes it.

    Attributes:
        logits: `[N, V_d]`. stats: `[N, 2 + R]` float32. tokens: `[N]` int32, what was drawn.
        dynamic_tokens, dynamic_logits: `[N, C]`, or None.
    """

    logits: Tensor
    stats: Tensor
    tokens: Tensor
    dynamic_tokens: Tensor | None
    dynamic_logits: Tensor | None


class DraftStateLayout(NamedTuple):
    """A draft state as one row of numbers in the dtype of the logits, `width` of them.

    vLLM carries one tensor from draft to verification. int32 and float32 travel as their bytes.

    Attributes:
        draft_size, rank: V_d and R of the affinity. dynamic: C.
        dtype: of the drafter's logits.
    """

    draft_size: int
    rank: int
    dynamic: int
    dtype: torch.dtype

    @property
    def _widths(self) -> list[int]:
        words = 4 // self.dtype.itemsize
        stats, dynamic = (2 + self.rank) * words, self.dynamic
        return [self.draft_size, dynamic, stats, words, dynamic * words]

    @property
    def width(self) -> int:
        """How many numbers one drafted position takes."""
        return sum(self._widths)

    def pack(self, state: DraftState) -> Tensor:
        """`[N, width]`."""
        logits, stats, tokens, dynamic_tokens, dynamic_logits = state
        parts = [logits, dynamic_logits, stats, tokens[:, None].int(), dynamic_tokens]
        return torch.cat([part.view(self.dtype) for part in parts if part is not None], 1)

    def unpack(self, packed: Tensor) -> DraftState:
        """The parts of `[N, width]`; the logits are a view of it."""
        logits, dynamic_logits, stats, tokens, dynamic_tokens = packed.split(self._widths, 1)
        drawn = tokens.contiguous().view(torch.int32)[:, 0]
        own = stats.contiguous().view(torch.float32)
        if not self.dynamic:
            return DraftState(logits, own, drawn, None, None)
        named = dynamic_tokens.contiguous().view(torch.int32)
        return DraftState(logits, own, drawn, named, dynamic_logits.contiguous())


class _Drafting:
    """The part of a proposer that is the same for every method of vLLM.

    Attributes:
        drafter: the small head and its affinity, once the model is loaded.
        layout: of what is carried to the verification.
    """

    drafter: PrunedDrafter
    layout: DraftStateLayout
    _full_head: FullHead
    _target: Any
    _requests: Requests
    _calibrated: PrunedDrafter | None
    _drawn: list[Tensor]
    _first: Tensor

    def serve(self, requests: Requests, calibrated: PrunedDrafter | None) -> Any:
        """Whom to draft for, and with which drafter; None for the model's own head."""
        self._requests, self._calibrated, self._drawn = requests, calibrated, []
        return self

    def load_model(self, target_model: Any) -> None:
        """Load vLLM's model, then give it the small head."""
        super().load_model(target_model)  # type: ignore[misc]
        self._target = target_model
        self.fit_head()

    def fit_head(self) -> None:
        """Make `drafter` and `layout` for the model that is loaded.

        Raises:
            UnsupportedConfigurationError: a model or a calibrated drafter that does not fit.
        """
        model: Any = self.model  # type: ignore[attr-defined]
        head = getattr(model, "lm_head", None)
        processor = getattr(model, "logits_processor", None)
        if head is None or processor is None or processor.logits_as_input:
            raise UnsupportedConfigurationError(
                f"rdk_cuda.integrations.vllm: the drafter is a {type(model).__name__}, which has "
                "no lm_head or no logits_processor; needs a causal language model with both"
            )
        self.drafter = self._fitting(model, head.weight)
        self._full_head = self._head_of_dynamic_tokens(head.weight)
        source = self.drafter.dynamic_tokens
        width = 0 if source is None else int(source.width)  # type: ignore[attr-defined]
        affinity = self.drafter.affinity
        dtype = self.drafter.weight.dtype
        self.layout = DraftStateLayout(affinity.draft_size, affinity.rank, width, dtype)

    def _fitting(self, model: Any, weight: Tensor) -> PrunedDrafter:
        config: Any = self.vllm_config.model_config  # type: ignore[attr-defined]
        target_size = config.get_vocab_size()
        mapping = getattr(model, "draft_id_to_target_id", None)  # EAGLE-3's own vocabulary
        if self._calibrated is None:
            ids = torch.arange(target_size, device="cpu")
            if mapping is not None:
                offsets = mapping.detach().cpu()
                ids = torch.arange(len(offsets), device=offsets.device) + offsets
            vocabulary = Vocabulary(ids, target_size)
            rows = weight[: len(ids)].detach()
            plain = PrunedDrafter(vocabulary, Affinity.intersection(vocabulary), rows)
            return _moved(plain, weight)
        drafter = self._calibrated
        got = [drafter.affinity.target_size, drafter.weight.shape[1]]
        needs = [target_size, weight.shape[1]]
        if got != needs:
            raise UnsupportedConfigurationError(
                f"rdk_cuda.integrations.vllm: the calibrated drafter has [V_t, d] = {got}; the "
                f"models that are served have {needs}: name the models that it was calibrated for"
            )
        reduced = mapping is not None or len(weight) < got[0]
        if drafter.dynamic_tokens is not None and drafter.lifted is None and reduced:
            raise UnsupportedConfigurationError(
                "rdk_cuda.integrations.vllm: dynamic tokens need the full head for their logits, "
                f"and that of the drafter has {len(weight)} rows; calibrate with --dynamic 0"
            )
        return _moved(drafter, weight)

    def _head_of_dynamic_tokens(self, weight: Tensor) -> FullHead:
        """The drafter's full head, or rows lifted from the target's."""
        lifted, size = self.drafter.lifted, self.drafter.affinity.target_size
        if lifted is None:
            return weight[:size], None
        rows = getattr(getattr(self._target, "lm_head", None), "weight", None)
        if rows is None or len(rows) < size:
            raise UnsupportedConfigurationError(
                "rdk_cuda.integrations.vllm: the drafter's dynamic tokens take their logits from "
                f"the target's head, and {type(self._target).__name__} has no lm_head with "
                f"{size} rows; calibrate with --dynamic 0"
            )
        return LiftedHead(lifted, rows[:size].detach())

    def set_inputs_first_pass(self, *args: Any, **kwargs: Any) -> tuple[int, Tensor, Any]:
        """Also notes the position of the first drafted token of each request."""
        inputs: tuple[int, Tensor, Any] = super().set_inputs_first_pass(  # type: ignore[misc]
            *args, **kwargs
        )
        # A draft model reads the newest token at its own position. EAGLE reads it at that of the
        # hidden state, one before.
        ahead = 2 if self.pass_hidden_states_to_model else 1  # type: ignore[attr-defined]
        read: Tensor = self.positions[inputs[1]]  # type: ignore[attr-defined]
        self._first, self._drawn = read.long() + ahead, []
        return inputs

    def _sample_draft_tokens(
        self, hidden_states: Tensor, sampling_metadata: Any
    ) -> tuple[Tensor, Tensor | None]:
        hidden, drafter = hidden_states, self.drafter
        logits = self._processed(torch.nn.functional.linear(hidden, drafter.weight, drafter.bias))
        tokens = columns = None
        if drafter.dynamic_tokens is not None:
            contexts = self._requests.contexts(self._drawn)
            source = drafter.dynamic_tokens
            tokens, gathered = dynamic_columns(source, self._full_head, contexts, hidden)
            columns = self._processed(gathered.to(logits))
        temperature = sampling_metadata.temperature
        if temperature is None:
            temperature = torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device)
        drawn, stats = operators.draft(
            logits,
            temperature,
            operators.step_keys(self._requests.seeds(hidden.device), self._first),
            self._first + len(self._drawn),
            *drafter.affinity.by_draft,
            tokens,
            columns,
        )
        drawn = drawn.clamp(min=0)  # -1, no distribution: verify rejects it by its stats
        self._drawn.append(drawn)
        if sampling_metadata.all_greedy:
            return drawn, None
        return drawn, self.layout.pack(DraftState(logits, stats, drawn, tokens, columns))

    def _processed(self, logits: Tensor) -> Tensor:
        """As vLLM's `LogitsProcessor` does it for the drafter's own head."""
        processor = self.model.logits_processor  # type: ignore[attr-defined]
        if processor.soft_cap is not None:
            logits = torch.tanh(logits / processor.soft_cap) * processor.soft_cap
        return logits if processor.scale == 1.0 else logits * processor.scale


class _DraftModel(_Drafting, DraftModelProposer):  # type: ignore[misc]
    pass


class _Eagle(_Drafting, EagleProposer):  # type: ignore[misc]
    pass


PROPOSERS: dict[str, type[Any]] = {"draft_model": _DraftModel, "eagle3": _Eagle}


def _moved(drafter: PrunedDrafter, like: Tensor) -> PrunedDrafter:
    """The drafter on the device and in the dtype of the model's head."""
    own = drafter.in_dtype(like.dtype)
    return replace(
        own,
        affinity=own.affinity.to(like.device),
        weight=own.weight.to(like.device),
        bias=None if own.bias is None else own.bias.to(like.device),
    )
