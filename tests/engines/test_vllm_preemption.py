"""Requests lose their place in the cache, and are read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from .engine import WORKER, Engine
from .jobs import PROMPTS

PREEMPTIONS = "num_preemptions"


@pytest.fixture(scope="module")
def engine(plain: dict[str, Any], drafters: Path) -> Iterator[Engine]:
    """With room for a few requests; `plain` is closed before it is started."""
    drafter, room = drafters / "virtual-dynamic-25", {"num_gpu_blocks_override": 14}
    ours = Engine(drafters / "model", WORKER, drafter, **room)
    yield ours
    ours.close()


def test_preempted_requests_say_what_they_say_where_there_is_room(engine: Engine) -> None:
    """Greedily, and drawn as long as nothing was preempted: then a step begins elsewhere."""
    prompts = PROMPTS[:10]
    greedy = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True)
    seeded = SamplingParams(temperature=1.0, max_tokens=120, seed=3, ignore_eos=True)
    expected, apart = (
        [*engine.tokens(prompts[:5], params), *engine.tokens(prompts[5:], params)]
        for params in (greedy, seeded)
    )
    assert engine.metric(PREEMPTIONS) == 0
    assert engine.tokens(prompts, greedy) == expected
    before = engine.metric(PREEMPTIONS)
    assert before > 0
    among = engine.tokens(prompts, seeded)
    assert engine.metric(PREEMPTIONS) > before
    assert [len(text) for text in among] == [120] * len(prompts)
    assert sum(text != own for text, own in zip(among, apart, strict=True)) < len(prompts) / 2
