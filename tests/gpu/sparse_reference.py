"""Redistribution by somebody else's sparse product: SciPy's, or CuPy's on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rdk_cuda.affinity import Affinity


def redistributed(
    numpy: Any,
    sparse: Any,
    affinity: Affinity,
    draft_logits: Tensor,
    temperature: float,
    dynamic_tokens: Tensor,
    dynamic_logits: Tensor,
) -> Any:
    """q of every row in float64, as DESIGN section 2 has it, at a temperature above 0.

    Args:
        numpy, sparse: `numpy` and `scipy.sparse`, or `cupy` and `cupyx.scipy.sparse`.
        draft_logits: `[B, V_d]` float32, on the device that these are for, as all tensors.
        dynamic_tokens, dynamic_logits: `[B, C]`.

    Returns:
        `[B, V_t]`, an array.
    """

    def array(tensor: Tensor) -> Any:
        return numpy.from_dlpack(tensor.contiguous())

    bias, offsets, drafts, weights, spread, prior = map(array, affinity.by_target)
    tokens = array(dynamic_tokens)
    used = (tokens >= 0) & (tokens < affinity.target_size)
    extra = numpy.where(used, array(dynamic_logits).astype("float64") / temperature, -numpy.inf)
    z = numpy.concatenate([array(draft_logits).astype("float64") / temperature + bias, extra], 1)
    mass = numpy.exp(z - z.max(1, keepdims=True))
    mass /= mass.sum(1, keepdims=True)
    static, dynamic = mass[:, : affinity.draft_size], mass[:, affinity.draft_size :]

    shape = (affinity.target_size, affinity.draft_size)
    by_target = sparse.csr_matrix((weights.astype("float64"), drafts, offsets), shape=shape)
    q = (by_target @ static.T).T + (static @ spread.astype("float64")) @ prior.astype("float64")
    rows, columns = numpy.nonzero(used)
    numpy.add.at(q, (rows, tokens[rows, columns]), dynamic[rows, columns])
    return q
