"""torch.ops.rdk.*, by name; the schemas are in docs/design.md.

Autograd lets all of them pass: integers have no gradient, and `redistribute` and `gather_logits`
refuse what requires grad by themselves, or in gradients.py. `help(torch.ops.rdk.draft)` says where
to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .contract import NAMESPACE, OPERATORS
from .library import operator

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


_library = torch.library.Library(NAMESPACE, "IMPL")
for _name in OPERATORS:
    _operator = globals()[_name] = operator(_name)
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
    # Whose gradient it is, whose rows of a step, or whose part on a rank.
    _function = _name.removesuffix("_backward").removesuffix("_step")
    _function = "shards.verify" if _name.endswith("_shard") else _function
    _function = "CombinedTokens" if _name == "name_tokens" else _function
    _operator.__doc__ = f"""The operator itself, on tensors.

    {_operator.default._schema}

    With an Affinity in place of its tensors, and an example: help(rdk_cuda.{_function}).
    Shapes, dtypes and exact results: section 4 of docs/design.md, in the source of rdk_cuda.
    The same in plain PyTorch: rdk_cuda.reference.{_name}.
    """
