"""Tensors that say they are on a GPU and compute on the CPU, and a count of what is called on them.

So on any machine a step is seen to wait for nothing: who asks for a value, or copies between the
host and the device from memory that is not pinned, is refused by name.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
# Those whose result has a size that the host has to know.
_WAITING = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim"}
_WAITING |= {"_unique2", "bincount", "repeat_interleave.Tensor"}
_ASKS = ("is_pinned", "lift_fresh")  # which do nothing


class WaitsForDeviceError(AssertionError):
    """A call for which the host would wait, or an upload from memory that is not pinned."""


class OnGPU(Tensor):
    """A tensor whose values are in `values`, on the CPU."""

    values: Tensor
    # Its own functions look at devices, which C++ has no guard for here: to them this is on meta.
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    @staticmethod
    def __new__(cls, values: Tensor) -> OnGPU:
        made: OnGPU = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device="meta",
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of a Pretended")


class _Made(TorchFunctionMode):
    """`torch.tensor(device=)` as what it is on a GPU: a tensor on the host, and an upload."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func is Tensor.to and isinstance(args[0], OnGPU) and args[1:2] == (GPU,):
            args = (args[0], *args[2:])  # it is there, which C++ does not know
            return func(*args, **given) if args[1:] or given else args[0]
        if func in (torch.tensor, torch.as_tensor) and given.get("device") == GPU:
            return func(*args, **given | {"device": "cpu"}).to(GPU)
        return func(*args, **given)


class Pretended(TorchDispatchMode):
    """While it is active `GPU` is a device, whose calls are counted in `names`.

    Args:
        strict: whether a call that waits is refused. Not while a worker loads.
    """

    _pinned: ClassVar[dict[int, Tensor]] = {}  # by storage, and kept: an address is used again

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self.strict = strict
        self.names: list[str] = []
        self._made, self._found = _Made(), (torch.cuda._lazy_init, Tensor.pin_memory)

    def __enter__(self) -> Any:
        torch.cuda._lazy_init = lambda: None  # type: ignore[assignment]
        Tensor.pin_memory = torch._C.TensorBase.pin_memory  # vLLM's stand-ins for CUDA replace it
        self._made.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._made.__exit__(*raised)
        torch.cuda._lazy_init, Tensor.pin_memory = self._found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        name = str(func).removeprefix("aten.")
        if not name.startswith(_ASKS):
            self.names.append(name)
        tensors = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        there = [isinstance(tensor, OnGPU) for tensor in tensors]
        device = given.get("device")
        on = any(there) if device is None else device.type == GPU.type
        waits = name in _WAITING or name.split(".")[0] in _WAITING
        if name.startswith(("index.", "index_put")):  # by a mask, whose true places are counted
            waits = any(own is not None and own.dtype == torch.bool for own in args[1])
        if self.strict and any(there) and waits:
            raise WaitsForDeviceError(f"{name} waits for the device")
        if name.startswith("_to_copy") and on is not there[0]:
            self._check(name, tensors[0], args, given, uploads=on)
        elif name.startswith("copy_") and there[0] is not there[-1]:
            self._check(name, tensors[-1], args, given, uploads=there[0])
        if device is not None:
            given["device"] = torch.device("cpu")
        pinned = given.pop("pin_memory", False) or name.startswith("_pin_memory")
        if name.startswith("is_pinned"):
            return self._is_pinned(args[0])
        own, own_given = tree_map(_values, (args, given))
        made = own[0].clone() if name.startswith("_pin_memory") else func(*own, **own_given)
        if pinned and not on:
            self._pinned[made.untyped_storage().data_ptr()] = made
        return tree_map(_on_gpu, made) if on else made

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def _check(self, name: str, host: Any, args: Any, given: Any, uploads: bool) -> None:
        if not self.strict:
            return
        blocks = not (given.get("non_blocking", False) or (len(args) > 2 and args[2]))
        if uploads and not self._is_pinned(host):
            raise WaitsForDeviceError(f"{name} uploads {list(host.shape)} from pageable memory")
        if blocks:
            raise WaitsForDeviceError(f"{name} of {list(host.shape)} blocks")


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, OnGPU) else leaf


def _on_gpu(leaf: Any) -> Any:
    return OnGPU(leaf) if isinstance(leaf, Tensor) else leaf
