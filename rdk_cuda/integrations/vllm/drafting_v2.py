"""Model runner V2's speculators with `rdk::draft` in place of their draw from the drafter's head.

A speculator's forward passes stay vLLM's. What was drawn from lies in a `DraftArena` by the slot of
each request, which V2 calls its index, until the next step verifies it. Nothing is read on the
host, so steps may be scheduled before the tokens of the one before are known there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from ...drafter import PrunedDrafter
from .configuration import UnsupportedConfigurationError
from .draft_head import DraftHead
from .model_runner_v2 import sample_draft

__all__ = ["Speculator", "speculator_for"]

_AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


class Speculator(DraftHead):
    """The part of a speculator that is the same for every method of vLLM."""

    _request_states: Any
    _drawn: list[Tensor]

    def serve(self, request_states: Any, calibrated: PrunedDrafter | None) -> Any:
        """Whose tokens to read, and with which drafter to draft; None for the model's own head."""
        self._request_states, self._calibrated, self._drawn = request_states, calibrated, []
        return self

    def propose(self, *args: Any, **kwargs: Any) -> Tensor:
        """vLLM's arguments and result."""
        self._drawn = []
        drafts: Tensor = super().propose(*args, **kwargs)  # type: ignore[misc]
        return drafts

    def sample_draft(
        self,
        hidden_states: Tensor,
        sample_src_positions: Tensor,
        idx_mapping: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        draft_step: Tensor,
        draft_logits: Tensor | None,
        spec_step_idx: int = 0,
        num_steps: int = 1,
    ) -> Tensor:
        """vLLM's arguments and result; `draft_logits` is None, as vLLM keeps none."""
        logits, tokens, columns = self.score(hidden_states, lambda: self._contexts(idx_mapping))
        drawn = sample_draft(
            logits,
            sample_src_positions,
            idx_mapping,
            temperature,
            seeds,
            draft_step,
            self.arena,
            dynamic_tokens=tokens,
            dynamic_logits=columns,
        )
        drawn = drawn.clamp(min=0)  # -1, no distribution: verify rejects it by its stats
        if self.drafter.dynamic_tokens is not None:
            self._drawn.append(drawn)
        return drawn

    def _contexts(self, idx_mapping: Tensor) -> Tensor:
        """`[B, w]`: the last tokens of each request with this step's drafts, -1 before the first.

        The runner has entered the tokens that the step decided by then.
        """
        states = self._request_states
        slots = idx_mapping.long().clamp(min=0)  # padding reads some request's
        last = torch.arange(-self.window, 0, device=idx_mapping.device)
        places = states.total_len.gpu[slots].long()[:, None] + last
        known = states.all_token_ids.gpu[slots[:, None], places.clamp(min=0)].long()
        drafted = [drawn[:, None] for drawn in self._drawn]
        return torch.cat([known.where(places >= 0, -1), *drafted], 1)


class _DraftModel(Speculator, StandaloneARSpeculator):  # type: ignore[misc]
    pass


class _Eagle(Speculator, EagleSpeculator):  # type: ignore[misc]
    pass


_SPECULATORS: dict[str, type[Any]] = {"draft_model": _DraftModel, "eagle3": _Eagle}


def speculator_for(runner: Any, vllm_config: Any, calibrated: PrunedDrafter | None) -> Any:
    """The speculator of the configuration, for a runner that has loaded no model yet.

    Raises:
        UnsupportedConfigurationError: dynamic tokens in CUDA graphs.
    """
    dynamic = calibrated is not None and calibrated.dynamic_tokens is not None
    if dynamic and not vllm_config.model_config.enforce_eager:
        raise UnsupportedConfigurationError(
            "rdk_cuda.integrations.vllm: the drafter has dynamic tokens, which model runner V2 "
            "would have to look up inside of CUDA graphs; add --enforce-eager, or calibrate with "
            "--dynamic 0"
        )
    speculative = vllm_config.speculative_config
    _name_aux_layers(speculative.draft_model_config.hf_config)
    own = _SPECULATORS[speculative.method](vllm_config, runner.device)
    return own.serve(runner.req_states, calibrated)


def _name_aux_layers(config: Any) -> None:
    """Put the layers that EAGLE-3 reads where model runner V2 looks for them.

    A checkpoint of vLLM's own format has them inside `eagle_config`. There V1 finds them, and V2
    (0.32.0) takes those of a default instead.
    """
    layers = (getattr(config, "eagle_config", None) or {}).get(_AUX_LAYERS)
    if layers and not getattr(config, _AUX_LAYERS, None):
        setattr(config, _AUX_LAYERS, layers)
