"""A multi-token head as `calibrate` reads it from its target's files, and writes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from ...drafter import PrunedDrafter
from ...files import write_json, write_whole
from ...vocabulary import Vocabulary
from ..eagle3 import CheckpointError, Eagle3Checkpoint, Eagle3Drafter, read_checkpoint
from ..eagle3 import load_state_drafter as load_of
from ..eagle3.config_json import read_fields
from ..eagle3.weights import WEIGHTS
from ..huggingface.saved_drafter import MODEL
from .checkpoint import published, read_mtp
from .network import MtpNetwork

_KIND = "MultiTokenHead"


@dataclass(frozen=True)
class MtpCheckpoint(Eagle3Checkpoint):
    """The first layer of a multi-token head; its LM head is the target's, or its own."""

    network: MtpNetwork

    def full_head(self, target: Any) -> Tensor:
        """Return `[V_t, d]`, of which nothing is copied."""
        weight: Tensor = self.network.lm_head.weight
        return weight

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the layer as its family publishes it, without what is the target's."""
        folder = Path(folder)
        tensors = {
            name: tensor.detach().cpu().to(self.dtype).contiguous()
            for name, tensor in published(self.network).items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        from safetensors.torch import save_file

        write_whole(folder / WEIGHTS, partial(save_file, tensors))
        fields = {"architectures": [_KIND], "model_type": self.network.decoder.config.model_type}
        write_json(fields, folder / "config.json")


def is_mtp(path: str | PathLike[str]) -> bool:
    """Say whether a directory holds what `MtpCheckpoint.save_pretrained` wrote."""
    try:
        return read_fields(Path(path)).get("architectures") == [_KIND]
    except (CheckpointError, OSError):
        return False


def read_mtp_checkpoint(path: str | PathLike[str], target: Any) -> MtpCheckpoint:
    """Read the head from a target's own files, or from what `save_pretrained` wrote.

    Args, errors: as `read_mtp`.
    """
    network = read_mtp(path, target)
    shared = frozenset([] if network.own_head else ["lm_head.weight"])
    vocabulary = Vocabulary.identity(len(network.lm_head.weight))
    return MtpCheckpoint(network, vocabulary, network.stored, shared)


def load_state_drafter(
    directory: str | PathLike[str], target: Any
) -> tuple[Eagle3Drafter, PrunedDrafter, dict[str, Any]]:
    """Read as `rdk_cuda.integrations.eagle3.load_state_drafter`, also a multi-token head."""
    native = is_mtp(Path(directory) / MODEL)
    return load_of(directory, target, read_mtp_checkpoint if native else read_checkpoint)
