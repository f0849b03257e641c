"""Model runner V2 on a CPU, by vLLM's own stand-ins for CUDA and Triton's interpreter.

vLLM's worker for CPUs has a model runner V2, for builds of Triton that compile for CPUs. Nothing of
vLLM is changed for it but two decisions, before it is imported: Triton counts as one that has a
backend for CPUs (its interpreter runs the same kernels), and steps are scheduled asynchronously, as
they are on a GPU.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


def interpret() -> None:
    """Call it before vLLM is imported.

    Raises:
        RuntimeError: the environment lacks what Triton reads when it is imported.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("Triton's kernels are to be interpreted; set TRITON_INTERPRET=1")
    from triton.backends import Backend, backends

    backends["cpu"] = Backend(compiler=None, driver=_Driver)
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.check_and_update_config

    def check_and_update_config(vllm_config: Any) -> None:
        own(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(check_and_update_config)
    import_module("vllm.v1.worker.cpu.shm")  # the stand-ins, which its worker for CPUs loads first
    _take_any_mask()


def _take_any_mask() -> None:
    """Triton's interpreter (3.9.0) refuses a mask of int1 that came from a scalar as integers.

    What it is told about the cache is one argument there, and two in 3.7.1.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    own = InterpreterBuilder.create_masked_store

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *caching: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return own(self, ptrs, value, mask, *caching)

    InterpreterBuilder.create_masked_store = create_masked_store
