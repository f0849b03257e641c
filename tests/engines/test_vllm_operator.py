"""What an operator turns on: adapters, compiled models, a reasoning parser, no prefix cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

from rdk_cuda.integrations.vllm.draft_head import DraftHead

from .engine import DRAFTS, WORKER, Engine
from .exact import Words, assert_joint
from .interpreter import V2
from .jobs import FIRST, OFTEN, PROMPTS, SAMPLES, WORDS, with_grammar
from .pair import TARGET, adapter

pytestmark = pytest.mark.night

TOKENIZER = AutoTokenizer.from_pretrained(TARGET)
THINKS, END = PROMPTS[30], "):"  # which is the second token of two in three texts
STOP = [*map(TOKENIZER.decode, OFTEN), "elf.", "def"]
ENDS: list[dict[str, Any]] = [  # of greedy requests, most inside of a block of accepted drafts
    *({"max_tokens": most} for most in range(1, 9)),
    {"stop": STOP},
    {"stop": STOP, "include_stop_str_in_output": True},
    {"stop": STOP, "min_tokens": 7},
    {"stop": STOP[-2:], "repetition_penalty": 1.2},
    {"stop_token_ids": OFTEN},
    {"stop_token_ids": OFTEN, "min_tokens": 5},
    {"logit_bias": {TOKENIZER.eos_token_id: 9.0}},
    {"logit_bias": {TOKENIZER.eos_token_id: 9.0}, "ignore_eos": True},
]
if not V2:  # which leaves these out of steps with drafts
    ENDS += [
        {"logprob_token_ids": OFTEN[:4]},
        {"logprob_token_ids": OFTEN[:2], "repetition_penalty": 1.1},
    ]


class Parser(BaseThinkingReasoningParser):
    """One token ends what is thought."""

    start_token, end_token = TOKENIZER.eos_token, END

    def extract_reasoning(self, model_output: str, request: Any) -> Any:
        raise NotImplementedError


ReasoningParserManager.register_module("one-token", module=Parser)
# Model runner V2 gives the logits of drafts no adapters, and torch compiles for no interpreter.
LORA = {} if V2 else {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
TURNED_ON: dict[str, Any] = LORA | {
    "enable_prefix_caching": False,
    "enforce_eager": V2,
    "reasoning_parser": "one-token",
    "max_num_seqs": 64,
}


class Said:
    """What each of `ENDS` gets with each adapter, and what vLLM has counted meanwhile."""

    def __init__(self, engine: Engine, adapters: list[Any]) -> None:
        most = {"max_tokens": 12 if V2 else 40}
        jobs = [
            (prompt, SamplingParams(temperature=0, **most | own), lora)
            for lora in adapters
            for own in ENDS
            for prompt in FIRST
        ]
        long = [
            [token for prompt in PROMPTS for token in prompt][:size] for size in (505, 509, 511)
        ]
        at_the_limit = SamplingParams(temperature=0, max_tokens=64, repetition_penalty=1.2)
        self.at_the_limit = engine.tokens(long, at_the_limit)  # of 512 tokens
        before = self._counted(engine)
        outputs = [out.outputs[0] for out in engine.generate(*map(list, zip(*jobs, strict=True)))]
        self.counts = self._counted(engine) - before
        parts = ("token_ids", "text", "finish_reason", "stop_reason")
        self.ends = [[getattr(out, part) for part in parts] for out in outputs]
        self.logprobs = [
            {token: of.logprob for token, of in place.items()}
            for out in outputs
            for place in out.logprobs or ()
        ]

    @staticmethod
    def _counted(engine: Engine) -> Counter[str]:
        return Counter(
            {
                metric.labels.get("finished_reason", metric.name): int(metric.value)
                for metric in engine.llm.get_metrics()
                if metric.name in ("vllm:generation_tokens", "vllm:request_success")
            }
        )


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("adapters")
    made = [adapter(folder / str(seed), seed) for seed in (1, 2)] if LORA else []
    return [None, *(LoRARequest(path.name, int(path.name), str(path)) for path in made)]


@pytest.fixture(scope="module")
def plain(adapters: list[Any]) -> Said:
    engine = Engine(**TURNED_ON)
    said = Said(engine, adapters)
    engine.close()
    return said


def accepted(engine: Engine) -> list[float]:
    """Drafts of a step, greedily, with repetition penalties of 1 and more."""
    params = [
        SamplingParams(temperature=0, max_tokens=48, repetition_penalty=own)
        for own in (1.0, 1.1, 1.3)
    ]
    return [engine.drafted(PROMPTS[:24], own)[1] for own in params]


@pytest.fixture(scope="module")
def accepted_by_vllm(plain: Said, drafters: Path) -> list[float]:
    if V2:
        return []
    engine = Engine(drafters / "model", **TURNED_ON)
    found = accepted(engine)
    engine.close()
    return found


@pytest.fixture(scope="module")
def asleep() -> list[str]:
    """What was made in memory that vLLM takes away when it sleeps."""
    return []


@pytest.fixture(scope="module")
def engine(accepted_by_vllm: Any, drafters: Path, asleep: list[str]) -> Iterator[Engine]:
    from vllm.v1.worker.gpu_worker import Worker

    pools: list[str] = []

    @contextmanager
    def pool(self: Any, tag: str) -> Iterator[None]:
        pools.append(tag)
        yield
        pools.remove(tag)

    def fit_head(self: DraftHead, own: Any = DraftHead.fit_head) -> None:
        asleep.extend(["never", *pools])
        own(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_maybe_get_memory_pool_context", pool)
        patch.setattr(DraftHead, "fit_head", fit_head)
        ours = Engine(drafters / "model", WORKER, drafters / "virtual-dynamic-25", **TURNED_ON)
    yield ours
    ours.close()


def test_what_is_drafted_from_stays_where_it_is_while_vllm_sleeps(
    engine: Engine, asleep: list[str]
) -> None:
    """A CPU has no sleep: vLLM's pool of what it discards at level 2 is a stand-in."""
    assert asleep == ["never"]


def test_requests_that_are_kept_while_vllm_sleeps_go_on(engine: Engine) -> None:
    """A worker on a CPU ignores it, but the scheduler has them read again."""
    prompts, params = PROMPTS[:4], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected, before = engine.tokens(prompts, params), engine.metric("num_preemptions")
    llm = engine.llm.llm_engine
    for name, prompt in enumerate(prompts):
        llm.add_request(str(name), {"prompt_token_ids": prompt}, params)
    said: dict[str, list[int]] = {}
    for _ in range(3):
        for _ in range(3):
            said |= {out.request_id: list(out.outputs[0].token_ids) for out in llm.step()}
        llm.engine_core.sleep(1, "keep")
        llm.engine_core.wake_up()
    while llm.has_unfinished_requests():
        said |= {out.request_id: list(out.outputs[0].token_ids) for out in llm.step()}
    assert engine.metric("num_preemptions") - before >= len(prompts)
    assert [said[str(name)] for name in range(len(prompts))] == expected


def test_texts_end_as_in_plain_vllm(plain: Said, engine: Engine, adapters: list[Any]) -> None:
    said = Said(engine, adapters)
    assert said.ends == plain.ends
    assert said.at_the_limit == plain.at_the_limit
    assert [len(text) for text in said.at_the_limit] == [7, 3, 1]
    assert said.logprobs == [pytest.approx(place, abs=1e-4) for place in plain.logprobs]
    # vLLM counts tokens before it looks for strings that end a text.
    more = {"vllm:generation_tokens": said.counts.total() - plain.counts.total()}
    assert said.counts - Counter(more) == plain.counts
    strings = sum("stop" in own for own in ENDS) * len(FIRST) * len(adapters)
    assert 0 <= more["vllm:generation_tokens"] <= DRAFTS * strings
    assert engine.metric("spec_decode_num_accepted_tokens") > len(said.ends) / 4
    # The controls: adapters say something else, and every reason occurs.
    each = len(said.ends) // len(adapters)
    of_each = [said.ends[start : start + each] for start in range(0, len(said.ends), each)]
    assert all(a != b for a, b in pairwise(of_each))
    assert {type(stop) for *_, stop in said.ends} == {type(None), int, str}


def test_a_grammar_begins_where_thinking_ends_among_drafts(engine: Engine) -> None:
    """So that drafts behind the end are cut, and put back, in the step that draws the end."""
    end, words = TOKENIZER.convert_tokens_to_ids(END), Words(WORDS)
    drawn = engine.tokens([THINKS] * SAMPLES, with_grammar(1.0, 4))
    assert engine.proposer.counters.read()["put_back_tokens.grammar"] > 0
    allowed = {"allowed": lambda text: words.after(text, end)}
    assert_joint(drawn, THINKS, temperature=1.0, length=4, **allowed)


@pytest.mark.skipif(V2, reason="its kernels are interpreted, and what it drafts is the same")
def test_penalties_cost_as_many_drafts_as_in_vllm(
    engine: Engine, accepted_by_vllm: list[float]
) -> None:
    """Neither draft has them. The last test: it changes the drafter."""
    engine.use(None)
    found = accepted(engine)
    assert found == pytest.approx(accepted_by_vllm, rel=0.01)
    assert found[0] > found[1] > found[2]
