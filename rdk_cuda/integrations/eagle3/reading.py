"""A target and a drafter on its hidden states, as `rdk_cuda.calibration.record` reads a text."""

from __future__ import annotations

import torch
from torch import Tensor

from ...calibration.reading import Read, Reading
from ...decoding import CausalModel, StateDrafter


def read_drafts(target: CausalModel, drafter: StateDrafter, draft_length: int) -> Read:
    """Reads a text as it is drafted: K tokens from the target's states, then the next K.

    The first token of a draft is predicted from the target's states alone. Those after it are
    predicted from what the drafter hands on to itself. So of the positions that are read, number i
    is of place i mod K of a draft. There is none after a text's first token, before which there is
    no state. (Relative: training-time test in EAGLE-3, Li et al., arXiv:2503.01840.)

    Args:
        target: returns the states that the drafter reads (`HuggingFaceModel`: `state_layers`).
        drafter: returns hidden states.
        draft_length: K.
    """
    if draft_length < 1:
        raise ValueError(f"read_drafts: draft_length is {draft_length}; needs at least 1")

    @torch.no_grad()
    def read(ids: Tensor) -> Reading:
        texts, length = ids.tolist(), ids.shape[1]
        for model in (target, drafter):
            model.reset(len(texts))
        output = target.feed(texts, [length] * len(texts))
        if output.states is None:
            raise ValueError(
                "read_drafts: the target's feed() returned no states (HuggingFaceModel: "
                "state_layers=drafter.state_layers)"
            )
        hidden = []
        for newest in range(1, length):  # the last token before the one that is predicted
            if (newest - 1) % draft_length == 0:
                known = drafter.observed[0]
                drafter.observe([states[known:newest] for states in output.states])
            unread = [text[drafter.lengths[0] : newest + 1] for text in texts]
            drafted = drafter.feed(unread, [1] * len(texts))
            if drafted.hidden is None:
                raise ValueError("read_drafts: the drafter's feed() returned no hidden states")
            hidden.append(drafted.hidden[:, 0])
        for model in (target, drafter):
            model.reset(0)
        return Reading(output.logits[:, 1:], torch.stack(hidden, dim=1))

    return read
