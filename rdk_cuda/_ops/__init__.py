"""torch.ops.rdk.* under names that type checkers know; the schemas are in docs/design.md.

Autograd lets all of them pass: integers have no gradient, and `redistribute` and `gather_logits`
refuse what requires grad by themselves, or in gradients.py. `help(torch.ops.rdk.draft)` says where
to look.
"""

from __future__ import annotations

import torch

from .. import _C  # noqa: F401  registers them

redistribute = torch.ops.rdk.redistribute
draft = torch.ops.rdk.draft
verify = torch.ops.rdk.verify
verify_tree = torch.ops.rdk.verify_tree
gather_logits = torch.ops.rdk.gather_logits
step_keys = torch.ops.rdk.step_keys

_library = torch.library.Library("rdk", "IMPL")
for _operator in (redistribute, draft, verify, verify_tree, gather_logits, step_keys):
    _name = _operator.__name__
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
    _operator.__doc__ = f"""The operator itself, on tensors.

    {_operator.default._schema}

    With an Affinity in place of its tensors, and an example: help(rdk_cuda.{_name}).
    Shapes, dtypes and exact results: section 4 of docs/design.md, in the source of rdk_cuda.
    The same in plain PyTorch: rdk_cuda.reference.{_name}.
    """
