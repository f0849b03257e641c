"""Our worker in a real vLLM says what vLLM says, or draws from the same distribution."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda import _ops as operators
from rdk_cuda.functional import Method
from rdk_cuda.integrations.vllm.drafting import DraftState, DraftStateLayout
from rdk_cuda.integrations.vllm.requests import Requests
from rdk_cuda.integrations.vllm.target_logits import Processed
from rdk_cuda.integrations.vllm.verification import TokenSampler

from .drafters import KINDS, SHARES
from .engine import Engine
from .exact import Joint, p_value, two_sample_p_value
from .jobs import GREEDY, PARAMETERS, PROMPTS, with_grammar

FALSE_ALARM = 1e-4  # of each statistical test
SAMPLES = 768
DRAFTERS = [f"{kind}-{share}" for share in SHARES for kind in KINDS]


@pytest.mark.parametrize("name", [None, *DRAFTERS])
def test_greedy_text_is_that_of_plain_vllm(
    name: str | None, engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(None if name is None else drafters / name)
    said, accepted = engine.drafted(PROMPTS, GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.3


@pytest.mark.parametrize("together", [False, True])
def test_parameters_do_what_they_do_in_plain_vllm(
    together: bool, engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-dynamic-25")
    jobs = [(prompt, each) for each in PARAMETERS.values() for prompt in PROMPTS[:3]]
    batches = [jobs] if together else [jobs[start : start + 3] for start in range(0, len(jobs), 3)]
    said = [
        tokens
        for batch in batches
        for tokens in engine.tokens([job[0] for job in batch], [job[1] for job in batch])
    ]
    expected = plain["parameters"]
    assert said == [tokens for name in PARAMETERS for tokens in expected[name]]
    unchanged = {name for name in PARAMETERS if expected[name] == expected["nothing"]}
    assert unchanged == {"nothing", "min-p"}


def test_logprobs_are_those_of_plain_vllm(
    engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-6.25")
    said = engine.generate(PROMPTS[:5], SamplingParams(temperature=0, max_tokens=16, logprobs=5))
    for ours, theirs in zip(said, plain["logprobs"], strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        pairs = zip(ours.outputs[0].logprobs, theirs.outputs[0].logprobs, strict=True)
        for own, expected in pairs:
            for token in own.keys() & expected.keys():
                assert abs(own[token].logprob - expected[token].logprob) < 1e-4
            assert len(own.keys() & expected.keys()) >= 5


def test_a_seed_gives_the_same_text_alone_and_among_others(engine: Engine, drafters: Path) -> None:
    engine.use(drafters / "virtual-dynamic-25")
    seeded = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=40, seed=123)
    other = SamplingParams(temperature=1.0, max_tokens=25, min_p=0.02)
    (alone,) = engine.tokens(PROMPTS[:1], seeded)
    among = engine.tokens(PROMPTS[:17], [*[other] * 9, seeded, *[other] * 7])
    assert engine.tokens([PROMPTS[9]], seeded) == [among[9]]
    again = engine.tokens([*PROMPTS[1:17], PROMPTS[0]], [*[other] * 16, seeded])
    assert again[-1] == alone
    changed = engine.tokens(PROMPTS[:1], SamplingParams(temperature=0.9, max_tokens=40, seed=124))
    assert changed != [alone]


def test_a_seed_gives_the_same_text_where_prefills_are_chunked(
    engine: Engine, drafters: Path
) -> None:
    """More prompts at once than fit a step. Seeds there end a vLLM 0.32.0 of its own on a CPU."""
    engine.use(drafters / "virtual-25")
    seeded = SamplingParams(temperature=1.0, max_tokens=12, seed=11)
    long = [
        [*one, *other, *another] for one, other, another in zip(*[iter(PROMPTS)] * 3, strict=False)
    ]
    alone = [engine.tokens([prompt], seeded)[0] for prompt in long]
    assert engine.tokens(long * 8, seeded) == alone * 8


def test_completions_of_one_request_have_seeds_of_their_own(engine: Engine, drafters: Path) -> None:
    engine.use(drafters / "virtual-25")
    params = SamplingParams(temperature=1.0, max_tokens=24, seed=5, n=3)
    said = [
        [list(one.token_ids) for one in engine.generate(PROMPTS[:1], params)[0].outputs]
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert len({tuple(tokens) for tokens in said[0]}) == 3


SETTINGS = {
    "T = 0.7": {"temperature": 0.7},
    "T = 1": {"temperature": 1.0},
    "T = 1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "T = 1, min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
}


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_first_tokens_have_the_joint_distribution_of_the_target(
    setting: str, method: Method, engine: Engine, drafters: Path
) -> None:
    engine.use(drafters / "virtual-dynamic-6.25")
    engine.verify_by(method)
    joint = Joint(PROMPTS[3], 3, **SETTINGS[setting])
    params = SamplingParams(max_tokens=3, **SETTINGS[setting])
    drawn = engine.tokens([PROMPTS[3]] * SAMPLES, params)
    assert joint.p_value(drawn) > FALSE_ALARM
    # A control: other parameters give another distribution.
    other = Joint(PROMPTS[3], 3, temperature=SETTINGS[setting]["temperature"] * 1.3)
    assert other.p_value(drawn) < FALSE_ALARM


class HalvedLayout(DraftStateLayout):
    """A control: sums of draft states are doubled, so `q` is half of what was drawn from."""

    def unpack(self, packed: torch.Tensor) -> DraftState:
        state = super().unpack(packed)
        return state._replace(stats=state.stats * torch.tensor([1.0, 2.0]))


def test_a_verification_with_another_q_would_be_caught(engine: Engine, drafters: Path) -> None:
    engine.use(drafters / "pruned-6.25")
    proposer = engine.worker.model_runner.drafter
    proposer.layout = HalvedLayout(*proposer.layout)
    joint = Joint(PROMPTS[3], 3, temperature=1.0)
    params = SamplingParams(temperature=1.0, max_tokens=3)
    assert joint.p_value(engine.tokens([PROMPTS[3]] * SAMPLES, params)) < FALSE_ALARM


def test_a_grammar_gives_the_distribution_of_plain_vllm(
    engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-25")
    expected, other = plain["grammar"]
    drawn = engine.tokens([PROMPTS[7]] * len(expected), with_grammar(1.0))
    assert two_sample_p_value(drawn, expected) > FALSE_ALARM
    assert two_sample_p_value(drawn, other) < FALSE_ALARM  # a control: another temperature


@pytest.mark.parametrize("put_back", [True, False])
def test_a_draft_that_a_grammar_cut_is_rejected_and_not_forgotten(
    put_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One draft for each of many requests. vLLM's way, to forget it, is the control."""
    samples = 20_000
    p = torch.tensor([0.3, 0.2, 0.1, 0.05, 0.05, 0.1, 0.1, 0.1])
    q = torch.tensor([0.05, 0.05, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1])
    forbidden = torch.arange(8) < 2
    masked = torch.where(forbidden, -torch.inf, p.log())
    affinity = Affinity.intersection(Vocabulary.identity(8))
    layout = DraftStateLayout(8, 0, 0, torch.float32)
    positions = torch.full((samples,), 7)
    names = [str(b) for b in range(samples)]
    asked = SimpleNamespace(seed=None, structured_outputs=object())
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=names),
        requests={name: SimpleNamespace(sampling_params=asked) for name in names},
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(seed=0)),
        max_model_len=64,
        _draft_prob_req_ids=names,
    )
    requests = Requests(runner, max_scheduled=10 * samples, longest_prefill=0)
    requests.scheduled = dict.fromkeys(names, 2)
    seeds = requests.seeds(positions.device)
    logits, ones = q.log().expand(samples, 8).contiguous(), torch.ones(samples)
    keys = operators.step_keys(seeds, positions)
    drawn, stats = operators.draft(logits, ones, keys, positions, *affinity.by_draft)
    packed = layout.pack(DraftState(logits, stats, drawn, None, None))
    runner._draft_probs = packed[:, None]
    cut = forbidden[drawn]  # what the scheduler does
    assert 0.05 < cut.double().mean() < 0.15
    if not put_back:
        nothing = lambda self, counts, longest, room: [False] * len(counts)  # noqa: E731
        monkeypatch.setattr(Requests, "cut_by_grammar", nothing)
    proposer = SimpleNamespace(drafter=SimpleNamespace(affinity=affinity), layout=layout)
    sampler = TokenSampler("raw_logprobs").serve(requests, proposer, "token")
    num_drafts = (~cut).int().tolist()
    rows = masked.expand(sum(num_drafts) + samples, 8).contiguous()
    tokens = sampler._verified(
        Processed(rows, ones), num_drafts, drawn[~cut].int(), ones, positions
    )
    expected = {(token,): p for token, p in enumerate(masked.softmax(-1).tolist())}
    counts = Counter((token,) for token in tokens[:, 0].tolist())
    assert (p_value(expected, counts, samples) > FALSE_ALARM) == put_back


def test_what_travels_to_the_verification_is_as_wide_as_the_small_head(
    engine: Engine, drafters: Path
) -> None:
    for name, limit in (("virtual-25", 0.27), ("virtual-6.25", 0.08)):
        engine.use(drafters / name)
        layout = engine.worker.model_runner.drafter.layout
        assert layout.width < limit * 16384


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_state_comes_back_as_it_was_packed(dtype: torch.dtype) -> None:
    layout = DraftStateLayout(draft_size=7, rank=2, dynamic=3, dtype=dtype)
    drawn = torch.tensor([5, 2**31 - 1], dtype=torch.int32)
    named = torch.tensor([[1, -1, 9], [4, 5, -1]], dtype=torch.int32)
    state = DraftState(
        torch.randn(2, 7, dtype=dtype),
        torch.randn(2, 4),
        drawn,
        named,
        torch.randn(2, 3, dtype=dtype),
    )
    packed = layout.pack(state)
    assert packed.shape == (2, layout.width)
    assert packed.dtype == dtype
    for part, expected in zip(layout.unpack(packed), state, strict=True):
        assert torch.equal(part, expected)
