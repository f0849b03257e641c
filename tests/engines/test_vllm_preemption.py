"""Requests lose their place in the cache, and are read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from .engine import WORKER, Engine
from .interpreter import V2
from .jobs import PROMPTS

pytestmark = [pytest.mark.night] * V2  # it takes long there
PREEMPTIONS = "num_preemptions"


@pytest.fixture(scope="module")
def engine(plain: dict[str, Any], drafters: Path) -> Iterator[Engine]:
    """With room for a few requests; `plain` is closed before it is started."""
    drafter, room = drafters / "virtual-dynamic-25", {"num_gpu_blocks_override": 14}
    ours = Engine(drafters / "model", WORKER, drafter, **room)
    yield ours
    ours.close()


def test_preempted_requests_say_what_they_say_where_there_is_room(engine: Engine) -> None:
    """Greedily, and drawn as long as nothing was preempted: then a step begins elsewhere.

    Every other request has penalties, which are of all that it has said and not of its last part.
    """
    prompts = PROMPTS[:10]
    penalties = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2}
    greedy, seeded = (
        [SamplingParams(max_tokens=120, ignore_eos=True, **own, **more) for more in ({}, penalties)]  # type: ignore[arg-type]
        * 5
        for own in ({"temperature": 0}, {"temperature": 1.0, "seed": 3})
    )
    expected, apart = (
        [*engine.tokens(prompts[:5], params[:5]), *engine.tokens(prompts[5:], params[5:])]
        for params in (greedy, seeded)
    )
    assert engine.metric(PREEMPTIONS) == 0
    without = engine.tokens(prompts[1:6:2], greedy[0])
    assert not any(a == b for a, b in zip(without, expected[1:6:2], strict=True))
    assert engine.tokens(prompts, greedy) == expected
    before = engine.metric(PREEMPTIONS)
    assert before > 0
    among = engine.tokens(prompts, seeded)
    assert engine.metric(PREEMPTIONS) > before
    assert [len(text) for text in among] == [120] * len(prompts)
    assert sum(text != own for text, own in zip(among, apart, strict=True)) < len(prompts) / 2
