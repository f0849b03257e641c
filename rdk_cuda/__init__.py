"""Lossless speculative sampling with reduced-vocabulary drafters.

Drafter softmax, affinity redistribution (arXiv:2506.03206) and residual rejection sampling as
single operators: `torch.ops.rdk.*`, or, with an `Affinity` in place of its tensors, the functions
below.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from . import moved as _moved  # noqa: F401  for imports of old names

__version__ = "0.1.0"

__all__ = [
    "Affinity",
    "AffinityError",
    "CombinedTokens",
    "Draft",
    "RecentTokens",
    "ScreenedTokens",
    "StepRows",
    "SuccessorCounts",
    "SuccessorTable",
    "Verified",
    "VerifiedTree",
    "Vocabulary",
    "__version__",
    "build_info",
    "distinct_tokens",
    "overlap",
    "verify_tree",
]


def _is_being_looked_for() -> bool:
    """Whether this is `python -m rdk_cuda`, which loads the rest once it has to run a command.

    Its --help would wait for torch otherwise. `sys.argv[0]` is "-m" until Python has found the
    module to run.
    """
    return sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] == __name__


if not _is_being_looked_for():
    import torch as _torch  # noqa: F401  the operators link against its libraries

    from ._ops import fakes as _fake_kernels  # noqa: F401  registers them
    from ._ops import library as _library
    from .affinity import Affinity, AffinityError
    from .dynamic_tokens import (
        CombinedTokens,
        RecentTokens,
        ScreenedTokens,
        SuccessorCounts,
        SuccessorTable,
        distinct_tokens,
    )
    from .functional import Draft, StepRows, Verified, VerifiedTree, overlap, verify_tree
    from .functional import operators as _functions
    from .functional.operators import *  # noqa: F403
    from .vocabulary import Vocabulary

    __all__ += _functions.__all__


def build_info() -> dict[str, Any]:
    """Report how the operators were built, and what they run on.

    Returns:
        version: of rdk_cuda. torch_target: the oldest torch that the binary runs with.
        built_with_torch: the torch it was compiled beside. cuda: the CUDA version, or None for CPU
        operators only. cuda_reason: why, or why they were not loaded beside this torch.
        architectures: the CUDA architectures, e.g. `["90a"]`.
        cuda_backend: what serves tensors on a GPU, `"compiled"` operators, `"cupy"` after
        `rdk_cuda.integrations.cupy.enable()`, or None.
        cpu_capability: the instruction set of the CPU operators, `"default"`, `"avx2"` or
        `"avx512"`: the best that this machine has, unless `RDK_CPU_CAPABILITY` named another when
        rdk_cuda was imported.

    Example:
        >>> import rdk_cuda
        >>> rdk_cuda.build_info()["torch_target"]
        '2.11'
    """
    operators = _library._C
    info: dict[str, Any] = json.loads(operators.build_info())
    info["cuda_backend"] = _library.cuda_backend()
    info["cuda_reason"] = _library.cuda_reason
    info["cpu_capability"] = operators.cpu_capability()
    return info
