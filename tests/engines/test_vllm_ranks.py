"""Two ranks of tensor parallelism say what one says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from .engine import WORKER, Engine, speculation
from .exact import Joint
from .jobs import ASKED, GREEDY, PROMPTS, SAMPLES
from .pair import EAGLE3

FALSE_ALARM = 1e-4  # of each statistical test
SEEDED = [
    SamplingParams(temperature=0.9, top_p=0.95, max_tokens=24, seed=seed) for seed in range(20)
]


@contextmanager
def serving(ranks: int, model: Path, drafter: Path | None, **options: Any) -> Iterator[Engine]:
    own = speculation(model, method="eagle3" if model == EAGLE3 else "draft_model")
    made = {"speculative_config": own, "tensor_parallel_size": ranks, **options}
    engine = Engine(None, WORKER, drafter, **made)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core for each rank; the same one for both would do, and takes longer."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")


@pytest.mark.parametrize("name", [None, "virtual-6.25", "virtual-eagle3", "eagle3"])
def test_greedy_text_on_two_ranks_is_that_of_plain_vllm(
    name: str | None, plain: dict[str, Any], runner: dict[str, int], drafters: Path
) -> None:
    of_states = name is not None and "eagle3" in name
    drafter = None if name in (None, "eagle3") else drafters / str(name)
    with serving(2, EAGLE3 if of_states else drafters / "model", drafter, **runner) as engine:
        said, accepted = engine.drafted(ASKED, GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.05


@pytest.mark.parametrize("name", ["virtual-dynamic-6.25", "virtual-dynamic-eagle3"])
def test_dynamic_tokens_and_seeds_on_two_ranks_are_those_of_one(
    name: str, plain: dict[str, Any], runner: dict[str, int], drafters: Path
) -> None:
    """Their logits come from the rows of both ranks, the drafter's own and the target's."""
    model = EAGLE3 if "eagle3" in name else drafters / "model"
    said = {}
    for ranks in (1, 2):
        with serving(ranks, model, drafters / name, **runner) as engine:
            greedy, accepted = engine.drafted(ASKED, GREEDY)
            said[ranks] = accepted, engine.tokens(PROMPTS[:20], SEEDED)
            params = SamplingParams(max_tokens=3, temperature=1.0)
            drawn = engine.tokens([PROMPTS[13]] * SAMPLES, params)
        assert greedy == plain["greedy"]
    assert said[1] == said[2]
    assert Joint(PROMPTS[13], 3, temperature=1.0).p_value(drawn) > FALSE_ALARM
    assert Joint(PROMPTS[13], 3, temperature=1.3).p_value(drawn) < FALSE_ALARM  # a control
