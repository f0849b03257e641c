"""The drafter as the demo runs it: as it is, or with a short context."""

from typing import Any

import torch
from torch import Tensor

from rdk_cuda.calibration.reading import Read, Reading
from rdk_cuda.calibration.record import read_models
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.pair.pairs import ModelPair


def drafting_model(models: ModelPair, **head: Any) -> HuggingFaceModel:
    """The drafter, with a head of its own if there is one in `head`."""
    return HuggingFaceModel(models.drafter, recent=models.recent, **head)


def reader(models: ModelPair) -> Read:
    """What both models say of a text."""
    if models.recent is None:
        return read_models(models.target, models.drafter)
    # With a head of one row: here nobody asks for logits.
    short = drafting_model(models, head=models.drafter_head[0][:1])

    @torch.no_grad()
    def read(ids: Tensor) -> Reading:
        logits = models.target(input_ids=ids, use_cache=False).logits
        short.reset(len(ids))
        hidden = short.feed(ids.tolist(), [ids.shape[1]] * len(ids)).hidden
        assert hidden is not None  # a model with a head returns it
        short.reset(0)
        return Reading(logits, hidden)

    return read
