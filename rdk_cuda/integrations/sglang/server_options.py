"""The plugin's configuration, by SGLang's own options, and its refusals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALGORITHMS = ("STANDALONE", "EAGLE3", "EAGLE")  # the last is what SGLang makes of NEXTN


class UnsupportedConfigurationError(ValueError):
    """Options of SGLang with which the plugin would not be right."""

    def __init__(self, said: str) -> None:
        super().__init__(f"rdk_cuda.integrations.sglang: {said}")


def is_asked_for(options: Any) -> bool:
    """Say whether the plugin is to serve. SGLang's own token maps are files, and not directories.

    Args:
        options: SGLang's.
    """
    named = options.speculative_token_map
    return named is not None and Path(named).is_dir()


def calibrated_directory(options: Any) -> Path | None:
    """Return the directory that `calibrate` has written.

    None where it is that of the draft model, whose own head and vocabulary are then kept.
    """
    named, model = Path(options.speculative_token_map), options.speculative_draft_model_path
    return None if model is not None and Path(model).resolve() == named.resolve() else named


def refuse_unsupported(options: Any) -> None:
    """Refuse what would be served wrongly or is not proven.

    Args:
        options: SGLang's, after it has settled them.

    Raises:
        UnsupportedConfigurationError: the first thing found, and what to do.
    """
    for said in _unsupported(options):
        raise UnsupportedConfigurationError(said)


def _unsupported(options: Any) -> Iterator[str]:
    if options.speculative_algorithm not in ALGORITHMS:
        yield (
            f"--speculative-token-map names a directory, and --speculative-algorithm is "
            f"{options.speculative_algorithm!r}; needs one of {', '.join(ALGORITHMS)}"
        )
    if options.speculative_eagle_topk != 1:
        yield (
            f"--speculative-eagle-topk is {options.speculative_eagle_topk}, a tree; needs 1, and "
            "--speculative-num-steps and --speculative-num-draft-tokens with it"
        )
    if options.speculative_adaptive:
        yield "--speculative-adaptive changes the length of drafts as it runs; leave it out"
    if options.enable_multi_layer_eagle:
        yield "--enable-multi-layer-eagle drafts with several models; leave it out"
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        if getattr(options, name) != 1.0:
            yield (
                f"--{name.replace('_', '-')} is {getattr(options, name)}, which accepts what is "
                "not the target's; needs 1.0"
            )
    for name in ("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size"):
        if getattr(options, name) not in (None, 1):
            yield f"{name} is {getattr(options, name)}, which has never been tried; needs 1"
    if options.disaggregation_mode != "null":
        yield (
            f"--disaggregation-mode is {options.disaggregation_mode!r}; the first draft of a "
            "request would be drawn elsewhere: leave it out"
        )
    if options.enable_watermark:
        yield "--enable-watermark changes what the target draws; leave it out"
    if float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "-1")) > 0:
        yield "SGLANG_SIMULATE_ACC_LEN makes up which drafts are accepted; unset it"
    if os.environ.get("SGLANG_ENABLE_ASYNC_ASSERT", "").lower() in ("1", "true", "yes", "y", "on"):
        yield (
            "SGLANG_ENABLE_ASYNC_ASSERT takes drafted tokens for columns of the drafter's head; "
            "unset it"
        )
