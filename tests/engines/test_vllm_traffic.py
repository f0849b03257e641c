"""Prompts of every remainder of the cache's blocks, sent again and beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .engine import WORKER, Engine
from .interpreter import V2
from .jobs import ONE_LEFT, PARAMETERS

pytestmark = pytest.mark.night

BLOCK = len(ONE_LEFT) - 1
LENGTHS = (1, BLOCK, BLOCK + 1) if V2 else (1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1)
ASKED = ("nothing", "presence penalty", "all penalties") if V2 else tuple(PARAMETERS)
JOBS = [(ONE_LEFT[:length], PARAMETERS[name]) for name in ASKED for length in LENGTHS]


def said(engine: Engine) -> list[list[list[int]]]:
    """Three times to all jobs. With so few places most of them begin while others go on."""
    return [engine.tokens(*zip(*JOBS, strict=True)) for _ in range(3)]


def test_what_is_found_in_the_cache_changes_no_text(drafters: Path) -> None:
    room: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 256}
    plain = Engine(**room)
    assert plain.llm.llm_engine.vllm_config.cache_config.block_size == BLOCK
    expected = said(plain)
    plain.close()
    drafter = drafters / "virtual-dynamic-25"
    ours = Engine(drafters / "model", WORKER, drafter, **room)
    assert said(ours) == expected
    ours.close()
