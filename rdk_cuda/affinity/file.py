"""The file of an affinity: its canonical tensors, and what their sizes are (DESIGN section 4)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..files import TensorFile
from .validation import CANONICAL, AffinityError

# Without priors nothing in a file is as long as the target's vocabulary, so a short one could ask
# for any amount of memory. The largest vocabularies have 2^18 tokens.
LARGEST_TARGET = 1 << 24

FILE = TensorFile("Affinity", "rdk_cuda.affinity", 1, tuple(CANONICAL), AffinityError)


def canonical_of(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Mapping[str, Tensor]:
    """Return an affinity's tensors from a file, unless they are wider than it says or may be."""
    prior = tensors["prior_cdf"]
    if prior.dim() == 2 and prior.shape[1] > LARGEST_TARGET:
        raise AffinityError(f"V_t is {prior.shape[1]}; needs at most {LARGEST_TARGET} in a file")
    said = metadata.get("target_size")
    if prior.dim() == 2 and said != str(prior.shape[1]):
        raise AffinityError(
            f"the file says target_size = {said}, and its tensors have {prior.shape[1]}; copy it "
            "anew"
        )
    return tensors
