"""Prompts of every remainder of the cache's blocks, sent again and beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from .engine import WORKER, Engine
from .interpreter import V2
from .jobs import ONE_LEFT, PARAMETERS

pytestmark = pytest.mark.night

BLOCK = len(ONE_LEFT) - 1
LENGTHS = (1, BLOCK, BLOCK + 1) if V2 else (1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1)
ASKED = ("nothing", "presence penalty", "all penalties") if V2 else tuple(PARAMETERS)
JOBS = [(ONE_LEFT[:length], PARAMETERS[name]) for name in ASKED for length in LENGTHS]


def test_what_is_found_in_the_cache_changes_no_text(drafters: Path) -> None:
    """All jobs three times. With so few places most of them begin while others go on."""
    ours, said = (drafters / "model", WORKER, drafters / "virtual-dynamic-25"), []
    for kind in ((), ours):
        engine = Engine(*kind, max_num_seqs=6, max_num_batched_tokens=256)
        assert engine.llm.llm_engine.vllm_config.cache_config.block_size == BLOCK
        said.append([engine.tokens(*zip(*JOBS, strict=True)) for _ in range(3)])
        engine.close()
    assert said[0] == said[1]
