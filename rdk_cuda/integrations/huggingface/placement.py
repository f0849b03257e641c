"""Weights of a model that Transformers has spread over devices by a device map."""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
