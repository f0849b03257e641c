"""Two ranks of tensor parallelism say what one says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams

from . import changed_rank
from .engine import WORKER, Engine, speculation
from .exact import assert_joint, prompts_of
from .jobs import GREEDY, PARAMETERS, PROMPTS, SAMPLES
from .pair import EAGLE3, TARGET, with_even_heads, with_fewer_tokens

pytestmark = pytest.mark.night

ASKED = prompts_of(100)
SEEDED = [
    SamplingParams(temperature=0.9, top_p=0.95, max_tokens=24, seed=seed) for seed in range(20)
]


@pytest.fixture(scope="module")
def even(drafters: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models with an even number of heads: two ranks share them."""
    made = tmp_path_factory.mktemp("even")
    sources = {"target": TARGET, "model": drafters / "model", "eagle3": EAGLE3}
    return {name: with_even_heads(source, made / name) for name, source in sources.items()}


@pytest.fixture(scope="module")
def greedy(runner: dict[str, int]) -> list[list[int]]:
    """What plain vLLM says, on one rank."""
    engine = Engine(**runner)
    said = engine.tokens(ASKED, GREEDY)
    engine.close()
    return said


@contextmanager
def serving(
    ranks: int,
    even: dict[str, Path],
    kind: str,
    drafter: Path | None,
    worker: str = WORKER,
    **options: Any,
) -> Iterator[Engine]:
    own = speculation(even[kind], method="eagle3" if kind == "eagle3" else "draft_model")
    made = {"speculative_config": own, "tensor_parallel_size": ranks, **options}
    engine = Engine(None, worker, drafter, even["target"], **made)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # a core for each rank


@pytest.mark.parametrize(
    ("kind", "name"),
    [("model", None), ("model", "virtual-6.25"), ("eagle3", None), ("eagle3", "virtual-eagle3")],
)
def test_greedy_text_on_two_ranks_is_that_of_plain_vllm(
    kind: str,
    name: str | None,
    greedy: list[list[int]],
    runner: dict[str, int],
    drafters: Path,
    even: dict[str, Path],
) -> None:
    drafter = None if name is None else drafters / name
    with serving(2, even, kind, drafter, **runner) as engine:
        said, accepted = engine.drafted(ASKED, GREEDY)
    assert said == greedy
    assert accepted > 0.05


@pytest.mark.parametrize(
    ("kind", "name"), [("model", "virtual-dynamic-6.25"), ("eagle3", "virtual-dynamic-eagle3")]
)
def test_dynamic_tokens_and_seeds_on_two_ranks_are_those_of_one(
    kind: str,
    name: str,
    greedy: list[list[int]],
    runner: dict[str, int],
    drafters: Path,
    even: dict[str, Path],
) -> None:
    """Their logits come from the rows of both ranks, the drafter's own and the target's."""
    said = {}
    for ranks in (1, 2):
        with serving(ranks, even, kind, drafters / name, **runner) as engine:
            text, accepted = engine.drafted(ASKED, GREEDY)
            said[ranks] = accepted, engine.tokens(PROMPTS[:20], SEEDED)
            params = SamplingParams(max_tokens=3, temperature=1.0)
            drawn = engine.tokens([PROMPTS[13]] * SAMPLES, params)
        assert text == greedy
    assert said[1] == said[2]
    assert_joint(drawn, PROMPTS[13], temperature=1.0)


@pytest.mark.parametrize("worker", [WORKER, changed_rank.NAME])
def test_ranks_that_draft_from_other_hidden_states_are_found(
    worker: str, runner: dict[str, int], even: dict[str, Path]
) -> None:
    """Equal ones go on: the control of the control."""
    compares = {"additional_config": {"rdk_cuda": {"compare_ranks": True}}}
    with serving(2, even, "model", None, worker, **compares, **runner) as engine:
        if worker == WORKER:
            _, accepted = engine.drafted(PROMPTS[:3], GREEDY)
            assert accepted > 0.05
            return
        with pytest.raises(Exception, match="the hidden states of rank 1 differ from those of"):
            engine.tokens(PROMPTS[:3], GREEDY)


@pytest.mark.parametrize("case", ["dynamic tokens", "eagle3", "parts of a chunk"])
def test_steps_on_shards_decide_what_whole_rows_do(
    case: str, runner: dict[str, int], drafters: Path, even: dict[str, Path], tmp_path: Path
) -> None:
    """Requests that need whole rows have them, also those that share a step with others."""
    kind, directory = {
        "dynamic tokens": ("model", drafters / "virtual-dynamic-6.25"),
        "eagle3": ("eagle3", drafters / "virtual-eagle3"),
        "parts of a chunk": ("model", None),
    }[case]
    prompts = PROMPTS[:20]
    if directory is None:  # of 16,000 columns each rank has 8,000 and padding
        even = {name: with_fewer_tokens(of, tmp_path / name, 16_000) for name, of in even.items()}
        prompts = [prompt for prompt in PROMPTS if max(prompt) < 16_000][:20]
    drawn = [SamplingParams(temperature=0.9, max_tokens=24, seed=seed) for seed in range(20)]
    told = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, prompt_logprobs=2)
    jobs = {
        "nothing": drawn,
        "limits": SEEDED,
        "some have limits": [*drawn[:10], *SEEDED[10:]],
        "log-probabilities": [told, told, *drawn[2:]],
        **{name: [params] * 20 for name, params in PARAMETERS.items()},
    }
    said: dict[bool, Any] = {}
    steps = {}
    for shards in (False, True):
        own = {"additional_config": {"rdk_cuda": {"verify_on_shards": shards}}}
        with serving(2, even, kind, directory, **own, **runner) as engine:
            said[shards] = {
                job: [
                    (out.outputs[0].token_ids, out.outputs[0].logprobs, out.prompt_logprobs)
                    for out in engine.generate(prompts, params[: len(prompts)])
                ]
                for job, params in jobs.items()
            }
            counts = engine.llm.collective_rpc(counted)[0]
        steps[shards] = counts["verified_steps.token"], counts["sharded_steps.token"]
    for job in jobs:
        assert said[True][job] == said[False][job], job
    assert steps[False][1] == 0
    assert 20 < steps[True][1] < steps[True][0] - 20


def counted(worker: Any) -> dict[str, int]:
    """What a rank has counted."""
    sums: dict[str, int] = worker._drafting.counters.read()
    return sums
