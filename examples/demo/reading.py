"""The drafter as the demo runs it: with a head of a method, and perhaps a short context."""

import torch
from torch import Tensor

from rdk_cuda.calibration.reading import Read, Reading
from rdk_cuda.calibration.record import read_models
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.pair.pairs import ModelPair


def drafting_model(pair: ModelPair, head: Tensor | None, bias: Tensor | None) -> HuggingFaceModel:
    """The drafter with a head, or with its own."""
    return HuggingFaceModel(pair.drafter, head=head, head_bias=bias, recent=pair.recent)


def reader(pair: ModelPair) -> Read:
    """What both models say of a text."""
    if pair.recent is None:
        return read_models(pair.target, pair.drafter)
    # With a head of one row: here nobody asks for logits.
    short = drafting_model(pair, pair.drafter_head[0][:1], None)
    target = pair.target

    @torch.no_grad()
    def read(ids: Tensor) -> Reading:
        logits = target(input_ids=ids, use_cache=False).logits
        short.reset(len(ids))
        hidden = short.feed(ids.tolist(), [ids.shape[1]] * len(ids)).hidden
        assert hidden is not None  # a model with a head returns it
        short.reset(0)
        return Reading(logits, hidden)

    return read
