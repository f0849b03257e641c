"""A target and a drafter on its hidden states, as `rdk_cuda.calibration.record` reads a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._ops.inputs import whole_number
from ...decoding import CausalModel, StateDrafter
from ...decoding.models import Read, Reading
from ..huggingface.states import states_of
from .network import Eagle3Network


def read_drafts(target: CausalModel, drafter: StateDrafter, draft_length: int) -> Read:
    """Read a text as it is drafted: K tokens from the target's states, then the next K.

    The first token of a draft is predicted from the target's states alone. Those after it are
    predicted from what the drafter hands on to itself. So of the positions that are read, number i
    is of place i mod K of a draft. There is none after a text's first token, before which there is
    no state. (Relative: training-time test in EAGLE-3, Li et al., arXiv:2503.01840.)

    Args:
        target: returns the states that the drafter reads (`HuggingFaceModel`: `state_layers`).
        drafter: returns hidden states.
        draft_length: K.
    """
    whole_number("read_drafts", "draft_length", draft_length, 1)

    @torch.no_grad()
    def read(ids: Tensor) -> Reading:
        texts, length = ids.tolist(), ids.shape[1]
        for model in (target, drafter):
            model.reset(len(texts))
        output = target.feed(texts, [length] * len(texts))
        if output.states is None:
            raise ValueError(
                "read_drafts: the target gives no states (state_layers=drafter.state_layers)"
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


def unrolled_read(target: Any, network: Eagle3Network, draft_length: int) -> Read:
    """Read as `read_drafts`, with gradients for the network: to train it.

    Both models read the text once, the network in K passes. Of the network those parameters get
    gradients that require them, of the target none.

    Args:
        target: a Hugging Face model.
        network: of a drafter for it.
        draft_length: K.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> layers = LlamaConfig(**size, num_hidden_layers=8, num_attention_heads=2)
        >>> target = LlamaForCausalLM(layers).eval()
        >>> from rdk_cuda.integrations.eagle3 import Eagle3Config
        >>> layer = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> network = Eagle3Network(Eagle3Config(layer, draft_size=20, target_hidden_size=16))
        >>> logits, hidden = unrolled_read(target, network, 4)(torch.ones(2, 9).long())
        >>> hidden.square().sum().backward()
        >>> logits.shape, network.fc.weight.grad.shape
        (torch.Size([2, 8, 50]), torch.Size([16, 48]))
    """
    whole_number("unrolled_read", "draft_length", draft_length, 1)
    depth = target.config.get_text_config().num_hidden_layers
    layers = network.config.layers_read(depth)

    def read(ids: Tensor) -> Reading:
        with torch.no_grad():
            arguments = {"use_cache": False, "output_hidden_states": True}
            with states_of(target, layers, depth) as states_read:
                said = target(input_ids=ids.to(target.device), **arguments)
            weight = network.lm_head.weight
            states = states_read(said, weight.device).to(weight)
        places = unrolled(network, ids.to(weight.device), states, draft_length)
        # Row i of draft i // K, which begins at entry K (i // K), is of place i mod K.
        drafts = torch.stack([hidden[:, ::draft_length] for hidden in places], dim=2)
        width = ids.shape[1] - 1
        return Reading(said.logits[:, 1:], network.norm(drafts.flatten(1, 2)[:, :width]))

    return read


def unrolled(network: Eagle3Network, tokens: Tensor, read: Tensor, depths: int) -> Iterator[Tensor]:
    """Yield the states `[B, width, d]` of each place, in drafts that begin everywhere in the text.

    Entry i of the first place is made of token i + 1 and the target's state i, and predicts token
    i + 2. The entries of later places take the network's own states, and know one token more each.

    Args:
        read: `[B, width + 1, 3 d]`, the target's states.
    """
    from transformers import DynamicCache

    ahead, states = tokens[:, 1:], network.fuse(read[:, :-1])
    width, cache = ahead.shape[1], DynamicCache()
    every = torch.arange(width, device=tokens.device)
    # Entry i sees the states up to i, then its own draft.
    own = states.new_full((width, width), torch.finfo(states.dtype).min)
    causal = own.triu(1)
    own.fill_diagonal_(0.0)
    for depth in range(depths):
        mask = torch.cat([causal] + [own] * depth, dim=1)[None, None]
        ahead_of = pad(ahead[:, depth:], (0, depth))
        hidden = network(ahead_of, states, (every + depth)[None], mask, cache)
        yield hidden
        states = network.handed_on(hidden)
