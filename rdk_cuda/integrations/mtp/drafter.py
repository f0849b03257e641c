"""A multi-token head in `rdk_cuda.decoding.SpeculativeDecoder` and `Generate`."""

from __future__ import annotations

from torch import Tensor

from ..eagle3.drafter import Eagle3Drafter
from .network import MtpNetwork


class MtpDrafter(Eagle3Drafter):
    """Drafts with one layer, over and over, as engines do; also trees.

    Args:
        network: from `read_mtp`.
        head: `[V_d, d]`, in place of the target's: a pruned one, from `calibrate` or `prune_head`.
        head_bias: `[V_d]`, its bias if it has one.

    Attributes:
        full_head: the target's, or the head's own. Rows of dynamic tokens are gathered from there,
            so a pruned drafter keeps no copy of it.

    Others, `state_layers` among them, are those of `Eagle3Drafter`.
    """

    network: MtpNetwork

    def __init__(
        self, network: MtpNetwork, *, head: Tensor | None = None, head_bias: Tensor | None = None
    ) -> None:
        full_head = network.lm_head.weight, network.lm_head.bias
        if head is None:
            head, head_bias = full_head
        super().__init__(
            network, network.target_layers, head=head, head_bias=head_bias, full_head=full_head
        )
