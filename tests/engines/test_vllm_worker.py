"""Our worker in a real vLLM says what vLLM says, or draws from the same distribution.

The same tests for both of vLLM's model runners. V2 is asked for less (`jobs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.triton_utils import triton
from vllm.v1.sample import logits_processor

from rdk_cuda.functional import Method
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.vllm import plugin
from tests.gpu.steps import FOLDER, NAMES, differing, recording, replayed

from .drafters import KINDS
from .engine import DRAFTS, WORKER, Engine, speculation
from .exact import FALSE_ALARM, Joint, Words, assert_joint
from .interpreter import V2
from .jobs import (
    ASKED,
    FIRST,
    GREEDY,
    LOGPROBS,
    ONE_LEFT,
    PARAMETERS,
    PROMPTS,
    REPELLED,
    SAMPLES,
    UNCHANGED,
    WORDS,
    with_grammar,
)
from .our_decoder import our_decoder
from .pair import EAGLE3


@pytest.fixture(scope="module")
def engine(plain: dict[str, Any], runner: dict[str, int], drafters: Path) -> Iterator[Engine]:
    """A test says which drafter it uses."""
    ours = Engine(drafters / "model", WORKER, drafters / "virtual-6.25", **runner)
    yield ours
    ours.close()


@pytest.fixture(scope="module")
def by_states(plain: dict[str, Any], runner: dict[str, int], drafters: Path) -> Iterator[Engine]:
    """With an EAGLE-3 drafter, which has 2,048 tokens of its own. The last one to be asked for.

    Its dynamic tokens have no rows in the drafter: their logits are lifted from the target's head.
    """
    own = speculation(EAGLE3, method="eagle3")
    ours = Engine(None, WORKER, drafters / "virtual-eagle3", speculative_config=own, **runner)
    yield ours
    ours.close()


def test_the_worker_drives_the_model_runner_that_is_asked_for(engine: Engine) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    runner = engine.worker.model_runner
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    assert isinstance(runner, GPUModelRunner) == isinstance(scheduler, AsyncScheduler) == V2
    if V2:
        assert triton.knobs.runtime.interpret
        assert runner.speculator.draft_logits is None  # those of vLLM, with all tokens


def test_vllm_does_not_say_that_what_is_served_will_not_work(engine: Engine) -> None:
    logger = logging.getLogger(logits_processor.__name__)
    for said in (plugin.NOT_SERVED, "something else"):
        passes = logger.filter(logging.makeLogRecord({"msg": said}))
        assert bool(passes) == (said != plugin.NOT_SERVED)


@pytest.mark.parametrize("name", [None, *(f"{kind}-6.25" for kind in KINDS)])
def test_greedy_text_is_that_of_plain_vllm(
    name: str | None, engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(None if name is None else drafters / name)
    theirs = {
        "drafted": "spec_decode_num_draft_tokens",
        "accepted": "spec_decode_num_accepted_tokens",
    }
    before = {own: engine.metric(metric) for own, metric in theirs.items()}
    said, accepted = engine.drafted(ASKED, GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.05
    counted = engine.proposer.counters.read()
    assert counted["drafted_tokens.none"] == 0
    for own, metric in theirs.items():
        ours = sum(count for kind, count in counted.items() if kind.startswith(own))
        more = ours - (engine.metric(metric) - before[own])
        # V2 is one step ahead, and what it verifies for a request that has ended is dropped.
        assert more >= 0 if V2 else more == 0
    dynamic = name is not None and "dynamic" in name
    assert dynamic or not counted["accepted_tokens.dynamic"]
    assert V2 or dynamic == (counted["accepted_tokens.dynamic"] > 0)


def test_what_is_kept_of_a_draft_is_as_wide_as_the_small_head(
    engine: Engine, runner: dict[str, int], drafters: Path
) -> None:
    slots = runner["max_num_seqs"]
    for share, width in (("25", 4096 + 64), ("6.25", 1024 + 64)):
        engine.use(drafters / f"virtual-{share}")
        assert engine.proposer.arena.rows.logits.shape == (slots, DRAFTS, width)


@pytest.mark.parametrize("together", [True] if V2 else [True, False])
def test_parameters_do_what_they_do_in_plain_vllm(
    together: bool, engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-dynamic-25")
    jobs = [(prompt, each) for each in PARAMETERS.values() for prompt in FIRST]
    size = len(jobs) if together else len(FIRST)
    said = [
        tokens
        for start in range(0, len(jobs), size)
        for tokens in engine.tokens(*zip(*jobs[start : start + size], strict=True))
    ]
    expected = plain["parameters"]
    assert said == [tokens for name in PARAMETERS for tokens in expected[name]]
    assert {name for name in PARAMETERS if expected[name] == expected["nothing"]} == UNCHANGED


def test_a_request_with_one_token_left_to_read_is_filled_up_and_served(
    engine: Engine, plain: dict[str, Any]
) -> None:
    """Sent again, a prompt is in the cache but for its last token. Then vLLM drafts -1 for it."""
    before = engine.metric("prefix_cache_hits")
    assert [engine.tokens([ONE_LEFT], REPELLED) for _ in range(2)] == plain["one left"]
    assert engine.metric("prefix_cache_hits") - before == len(ONE_LEFT) - 1


def test_logprobs_are_those_of_plain_vllm(
    engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-6.25")
    said = engine.generate(PROMPTS[: len(plain["logprobs"])], LOGPROBS)
    for ours, theirs in zip(said, plain["logprobs"], strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        pairs = zip(ours.outputs[0].logprobs, theirs.outputs[0].logprobs, strict=True)
        for own, expected in pairs:
            common = own.keys() & expected.keys()
            assert len(common) >= 5
            assert all(abs(own[token].logprob - expected[token].logprob) < 1e-4 for token in common)


def test_a_seed_gives_the_same_text_alone_and_among_others(engine: Engine, drafters: Path) -> None:
    """The others also make that its prefill is chunked, and that it comes to another place.

    Seeds in a chunked prefill end a vLLM 0.32.0 of its own on a CPU.
    """
    engine.use(drafters / "virtual-dynamic-25")
    seeded = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=20, seed=123)
    other = SamplingParams(temperature=1.0, max_tokens=12, min_p=0.02)
    (alone,) = engine.tokens(PROMPTS[:1], seeded)
    among = engine.tokens(
        [*PROMPTS[1:11], PROMPTS[0], *PROMPTS[11:17]], [*[other] * 10, seeded, *[other] * 6]
    )
    assert among[10] == alone
    changed = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=20, seed=124)
    assert engine.tokens(PROMPTS[:1], changed) != [alone]


def test_completions_of_one_request_have_seeds_of_their_own(engine: Engine, drafters: Path) -> None:
    engine.use(drafters / "virtual-25")
    params = SamplingParams(temperature=1.0, max_tokens=12, seed=5, n=3)
    said = [
        [list(one.token_ids) for one in engine.generate(PROMPTS[:1], params)[0].outputs]
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert len({tuple(tokens) for tokens in said[0]}) == 3


def test_steps_are_recorded_for_a_gpu(engine: Engine, drafters: Path) -> None:
    """They are made again here, to the bit; with other seeds they are not."""
    engine.use(drafters / "virtual-dynamic-6.25")
    params = [SamplingParams(temperature=own, max_tokens=10, seed=7) for own in (0, 1.0, 0.8)]
    file = FOLDER / f"steps-v{1 + V2}.pt"
    with recording(file):
        engine.tokens(PROMPTS[:3], params)
    calls = list(replayed(file, torch.device("cpu")))
    assert {call.name for call, _ in calls} == set(NAMES)
    assert all(differing(run(), call.result)[0] == 0 for call, run in calls)
    changed = replayed(file, torch.device("cpu"))
    assert any(
        differing(run(seeds=call.named["seeds"] + 1), call.result)[0]
        for call, run in changed
        if call.name == "draft"
    )


CASES = [
    ("block", {"temperature": 1.0, "top_p": 0.9}),
    pytest.param("token", {"temperature": 1.0, "min_p": 0.1}, marks=[pytest.mark.night] * V2),
    ("token", {"temperature": 0.7}),
    ("block", {"temperature": 1.0}),
]


@pytest.mark.parametrize(("method", "setting"), CASES[:2] if V2 else CASES)
def test_first_tokens_have_the_joint_distribution_of_the_target(
    method: Method, setting: dict[str, float], engine: Engine, drafters: Path
) -> None:
    engine.use(drafters / "virtual-dynamic-6.25")
    engine.verify_by(method)
    params = SamplingParams(max_tokens=3, **setting)  # type: ignore[arg-type]
    assert_joint(engine.tokens([PROMPTS[13]] * SAMPLES, params), PROMPTS[13], **setting)


def test_a_verification_with_another_q_would_be_caught(
    engine: Engine, drafters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of draft states are eight times theirs, so `q` is an eighth of what was drawn from."""
    engine.use(drafters / "pruned-6.25")
    own = DraftArena.draft

    def draft(self: DraftArena, logits: Tensor, step: Any, *, slots: Any, **of: Tensor) -> Tensor:
        drawn = own(self, logits, step, slots=slots, **of)
        kept = torch.arange(len(logits)) if slots is None else slots.long()
        self.rows.stats[kept, step, 1] *= 8
        return drawn

    monkeypatch.setattr(DraftArena, "draft", draft)
    params = SamplingParams(temperature=1.0, max_tokens=3)
    drawn = engine.tokens([PROMPTS[13]] * 384, params)
    assert Joint(PROMPTS[13], 3, temperature=1.0).p_value(drawn) < FALSE_ALARM


def test_a_grammar_gives_the_distribution_of_the_target_among_its_words(
    engine: Engine, drafters: Path
) -> None:
    engine.use(drafters / "virtual-25")
    drawn = engine.tokens([PROMPTS[7]] * SAMPLES, with_grammar(1.0))
    allowed = Words(WORDS).allowed
    assert_joint(drawn, PROMPTS[7], temperature=1.0, control=2.0, allowed=allowed)


@pytest.mark.parametrize("name", [None, "virtual-eagle3", "virtual-dynamic-eagle3"])
def test_greedy_text_with_eagle3_is_that_of_plain_vllm(
    name: str | None, by_states: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    by_states.use(None if name is None else drafters / name)
    said, accepted = by_states.drafted(ASKED, GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.05


def test_a_seed_with_eagle3_gives_the_text_of_our_decoder(
    by_states: Engine, drafters: Path
) -> None:
    """Alone and among others. Neither drafts before it has states, so their steps are the same.

    But for the last token: the decoder cuts the drafts that end behind it.
    """
    by_states.use(drafters / "virtual-dynamic-eagle3")
    prompts, seeds = PROMPTS[:3], [123, 2**40, 0]
    seeded = [SamplingParams(temperature=0.9, max_tokens=24, seed=seed) for seed in seeds]
    others = [SamplingParams(temperature=1.0, max_tokens=15, min_p=0.02)] * 12
    decoder = our_decoder(EAGLE3, drafters / "virtual-dynamic-eagle3", DRAFTS)
    made = decoder.generate(prompts, max_new_tokens=24, temperature=0.9, seeds=seeds)
    expected = [list(text)[:-1] for text in made.tokens]
    alone = [by_states.tokens([one], [own])[0] for one, own in zip(prompts, seeded, strict=True)]
    among = by_states.tokens([*PROMPTS[4:16], *prompts], [*others, *seeded])[12:]
    assert [text[:-1] for text in alone] == [text[:-1] for text in among] == expected


@pytest.mark.parametrize(("method", "name"), [("token", None), ("block", "virtual-dynamic-eagle3")])
def test_first_tokens_with_eagle3_have_the_joint_distribution_of_the_target(
    method: Method, name: str | None, by_states: Engine, drafters: Path
) -> None:
    by_states.use(None if name is None else drafters / name)
    by_states.verify_by(method)
    params = SamplingParams(max_tokens=3, temperature=1.0)
    drawn = by_states.tokens([PROMPTS[13]] * SAMPLES, params)
    assert_joint(drawn, PROMPTS[13], temperature=1.0)
