"""Weights of a model, also of one that Transformers has spread over devices by a device map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SAMPLED = 64  # weights that a model is recognised by


def weight_of(module: Any, name: str = "weight") -> Tensor:
    """A module's own weight, detached; of one that was offloaded, a copy on the CPU.

    Where a device map leaves no room for a module, its parameters are empty ("meta"), and hooks of
    accelerate read them for each pass, from files or from the host's memory.
    """
    weight: Tensor = getattr(module, name)
    if not weight.is_meta:
        return weight.detach()
    from accelerate.utils import align_module_device

    with align_module_device(module, "cpu"):
        weight = getattr(module, name)
        return weight.detach()


def named_weight(model: Any, name: str) -> Tensor:
    module, _, own = name.rpartition(".")
    return weight_of(model.get_submodule(module), own)


def weight_sample(model: Any) -> list[float]:
    """Sample enough weights to tell whether another directory has the same ones."""
    matrices = [name for name, weight in sorted(model.named_parameters()) if weight.dim() > 1]
    sample = []
    for turn in range(SAMPLED):
        weight = named_weight(model, matrices[turn * len(matrices) // SAMPLED]).flatten()
        place = (2 * turn + 1) * weight.numel() // (2 * SAMPLED)
        sample.append(float(weight[place]))
    return sample


def same_weights(sample: object, model: Any) -> bool | None:
    """Whether a model has the weights of a `weight_sample`; None of what is no such sample.

    Copies in bfloat16 or float16 are the same model. Training changes weights by more than such
    rounding, somewhere in the sample.
    """
    try:
        expected = torch.tensor(sample, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None
    if expected.shape != (SAMPLED,) or not bool(expected.isfinite().all()):
        return None
    found = torch.tensor(weight_sample(model), dtype=torch.float64, device="cpu")
    bfloat16, float16 = 2**-8, 2**-24  # the latter's smallest number, below which it has no digits
    return torch.allclose(found, expected, rtol=bfloat16, atol=float16)
