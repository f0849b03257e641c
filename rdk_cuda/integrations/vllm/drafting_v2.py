"""Model runner V2's speculators with `rdk::draft` in place of their draw from the drafter's head.

A speculator's forward passes stay vLLM's. The logits of drafts lie in a `DraftArena` by the slot of
each request, which V2 calls its index, until the next step verifies it. Nothing is read on the
host, so steps may be scheduled before the tokens of the one before are known there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...dynamic_tokens import KeptContexts
from .draft_head import DraftHead
from .model_runner_v2 import sample_draft

_AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


class Speculator(DraftHead):
    """The part of a speculator that is the same for every method of vLLM."""

    _request_states: Any
    _place: tuple[Tensor, Tensor] | None = None

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
        """Draft, with vLLM's arguments; `draft_logits` is None, as vLLM keeps none."""
        given = hidden_states, sample_src_positions, idx_mapping
        if not draft_step.dim():
            return self._drawn(*given, temperature, seeds, draft_step)
        each, drafts = self.arena.draft_length, self.draft_tokens  # type: ignore[attr-defined]
        # A block drafter's lie request by request.
        by_place = [of.unflatten(0, (-1, each)).transpose(0, 1).contiguous() for of in given]
        for place, (hidden, positions, slots) in enumerate(zip(*by_place, strict=True)):
            drawn = self._drawn(hidden, positions, slots, temperature, seeds, draft_step[place])
            drafts[: len(slots), place] = drawn
        flat: Tensor = drafts[: len(slots)].flatten()
        return flat

    def _drawn(
        self,
        hidden_states: Tensor,
        sample_src_positions: Tensor,
        idx_mapping: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        draft_step: Tensor,
    ) -> Tensor:
        states, place = self._request_states, self._as_place(draft_step)
        # The runner has entered the tokens that the step decided by then.
        logits, tokens, columns = self.score(
            hidden_states,
            lambda: KeptContexts(
                states.all_token_ids.gpu,
                drafts=self.arena.rows.tokens,
                lengths=states.total_len.gpu,
                slots=idx_mapping,
                place_id=place,
                window=self.window,
            ),
        )
        drawn = sample_draft(
            logits,
            sample_src_positions,
            idx_mapping,
            temperature,
            seeds,
            place,
            self.arena,
            dynamic_tokens=tokens,
            dynamic_logits=columns,
        )
        drawn = drawn.clamp(min=0)  # -1, no distribution: verify rejects it by its stats
        self.compare("drafted tokens", drawn)
        return drawn

    def _as_place(self, draft_step: Tensor) -> Tensor:
        """`[1]`, made once: a speculator keeps its place in one tensor, which vLLM fills anew."""
        if self._place is None or self._place[0] is not draft_step:
            self._place = draft_step, draft_step.reshape(1)
        return self._place[1]


def name_aux_layers(config: Any) -> None:
    """Put the layers that EAGLE-3 reads where model runner V2 looks for them.

    A checkpoint of vLLM's own format has them inside `eagle_config`. There V1 finds them, and V2
    (0.32.0) takes those of a default instead.
    """
    layers = (getattr(config, "eagle_config", None) or {}).get(_AUX_LAYERS)
    if layers and not getattr(config, _AUX_LAYERS, None):
        setattr(config, _AUX_LAYERS, layers)
