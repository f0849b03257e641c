"""A calibrated drafter on the target's states, from the directory that `calibrate` writes."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from ...drafter import LiftedHead, PrunedDrafter, SavedDrafterError
from ...dynamic_tokens import TokenHead
from ..huggingface.saved_drafter import MODEL, load_pruned, refuse_other_model
from .checkpoint import Eagle3Checkpoint, read_checkpoint
from .drafter import Eagle3Drafter
from .weights import CheckpointError


def load_state_drafter(
    directory: str | PathLike[str], target: Any
) -> tuple[Eagle3Drafter, PrunedDrafter, dict[str, Any]]:
    """Read what `calibrate` wrote of a drafter on states, from local files alone; check all of it.

    Args:
        directory: with the checkpoint, what it was pruned to, and the settings.
        target: the model that it drafts for, from `AutoModelForCausalLM`.

    Returns:
        The drafter with its head of kept and virtual tokens, for `SpeculativeDecoder` and
        `Generate`; its affinity, kept and dynamic tokens; the settings of the calibration.

    Raises:
        SavedDrafterError: a file that is missing, altered, or does not belong to the others.
        OSError: one that cannot be opened.
    """
    folder = Path(directory) / MODEL
    device = target.get_output_embeddings().weight.device
    pruned, settings = load_pruned(directory, device=device)
    from ..mtp import is_mtp, read_mtp_checkpoint  # which imports this package

    read = read_mtp_checkpoint if is_mtp(folder) else read_checkpoint
    try:
        checkpoint: Eagle3Checkpoint = read(folder, target)
    except CheckpointError as error:
        raise SavedDrafterError(f"load_state_drafter: {error}") from error
    refuse_other_model(f"load_state_drafter: {folder}", checkpoint, pruned)
    rows = checkpoint.full_head(target)
    full_head: TokenHead | None = None if rows is None else (rows, checkpoint.network.lm_head.bias)
    if pruned.lifted is not None:
        try:
            full_head = LiftedHead(pruned.lifted, target.get_output_embeddings().weight.detach())
        except ValueError as error:
            raise SavedDrafterError(f"load_state_drafter: {folder}: {error}") from error
    drafter = Eagle3Drafter(
        checkpoint.network,
        target.config.get_text_config().num_hidden_layers,
        head=pruned.weight,
        head_bias=pruned.bias,
        full_head=full_head,
    )
    return drafter, pruned, settings
