"""Our worker in vLLM's model runner V2: the real runner, whose Triton kernels are interpreted.

Steps are scheduled asynchronously, as on a GPU. `interpreter.py` says how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.sample.states import SamplingStates

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.functional import Method
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned
from rdk_cuda.integrations.vllm.configuration import UnsupportedConfigurationError
from rdk_cuda.integrations.vllm.drafting_v2 import speculator_for
from rdk_cuda.integrations.vllm.verification_v2 import TokenSampler, Verifier

from .engine import DRAFTS, WORKER, Engine, speculation
from .exact import Joint, joint_of_words, p_value
from .jobs import PROMPTS, WORDS, parameters, with_grammar
from .our_decoder import our_decoder
from .pair import EAGLE3

FALSE_ALARM = 1e-4  # of each statistical test
SAMPLES = 256
GREEDY = SamplingParams(temperature=0, max_tokens=16)
LOGPROBS = SamplingParams(temperature=0, max_tokens=8, logprobs=5)
RUNNER = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
PARAMETERS = parameters()
for each in PARAMETERS.values():
    each.max_tokens = 14


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """What model runner V2 says without speculation: little, because its sampler is slow here."""
    engine = Engine(**RUNNER)
    said = {
        "greedy": engine.tokens(PROMPTS[:6], GREEDY),
        "parameters": engine.tokens(PROMPTS[1:2] * len(PARAMETERS), list(PARAMETERS.values())),
        "logprobs": engine.generate(PROMPTS[:2], LOGPROBS),
    }
    engine.close()
    return said


@pytest.fixture(scope="module")
def engine(plain: dict[str, Any], drafters: Path) -> Iterator[Engine]:
    ours = Engine(drafters / "model", WORKER, drafters / "virtual-6.25", **RUNNER)
    yield ours
    ours.close()


@pytest.fixture(scope="module")
def by_states(drafters: Path) -> Iterator[Engine]:
    """With the EAGLE-3 drafter, which has 2,048 tokens of its own. The last one to be asked for."""
    own = speculation(EAGLE3, method="eagle3")
    ours = Engine(None, WORKER, drafters / "virtual-eagle3", speculative_config=own, **RUNNER)
    yield ours
    ours.close()


def test_the_worker_drives_model_runner_v2(engine: Engine) -> None:
    from vllm.triton_utils import triton
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    runner = engine.worker.model_runner
    assert isinstance(runner, GPUModelRunner)
    assert isinstance(engine.llm.llm_engine.engine_core.engine_core.scheduler, AsyncScheduler)
    assert triton.knobs.runtime.interpret
    assert runner.speculator.draft_logits is None  # those of vLLM, with all tokens
    assert runner.speculator.arena.logits.shape == (65, DRAFTS, 1024 + 64)


def test_dynamic_tokens_in_cuda_graphs_are_refused(drafters: Path) -> None:
    graphs = SimpleNamespace(model_config=SimpleNamespace(enforce_eager=False))
    calibrated, _ = load_pruned(drafters / "virtual-dynamic-25")
    with pytest.raises(UnsupportedConfigurationError, match="add --enforce-eager"):
        speculator_for(None, graphs, calibrated)


@pytest.mark.parametrize("name", [None, "pruned-6.25", "virtual-6.25", "virtual-dynamic-6.25"])
def test_greedy_text_is_that_of_plain_vllm(
    name: str | None, engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(None if name is None else drafters / name)
    said, accepted = engine.drafted(PROMPTS[:6], GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.3


def test_parameters_do_what_they_do_in_plain_vllm(
    engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-dynamic-25")
    said = engine.tokens(PROMPTS[1:2] * len(PARAMETERS), list(PARAMETERS.values()))
    assert said == plain["parameters"]
    unchanged = {name for name, own in zip(PARAMETERS, said, strict=True) if own == said[0]}
    assert unchanged == {"nothing", "frequency penalty", "min-p"}


def test_logprobs_are_those_of_plain_vllm(
    engine: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    engine.use(drafters / "virtual-6.25")
    for ours, theirs in zip(engine.generate(PROMPTS[:2], LOGPROBS), plain["logprobs"], strict=True):
        pairs = zip(ours.outputs[0].logprobs, theirs.outputs[0].logprobs, strict=True)
        for own, expected in pairs:
            assert own.keys() == expected.keys()
            for token in own:
                assert abs(own[token].logprob - expected[token].logprob) < 1e-4


def test_a_seed_gives_the_same_text_alone_and_among_others(engine: Engine, drafters: Path) -> None:
    """The others also make that its prefill is chunked, and that it comes to another place."""
    engine.use(drafters / "virtual-dynamic-25")
    seeded = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=20, seed=123)
    other = SamplingParams(temperature=1.0, max_tokens=12, min_p=0.02)
    (alone,) = engine.tokens(PROMPTS[:1], seeded)
    among = engine.tokens([*PROMPTS[1:17], PROMPTS[0]], [*[other] * 16, seeded])
    assert among[-1] == alone
    changed = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=20, seed=124)
    assert engine.tokens(PROMPTS[:1], changed) != [alone]


def test_first_tokens_have_the_joint_distribution_of_the_target(
    engine: Engine, drafters: Path
) -> None:
    engine.use(drafters / "virtual-dynamic-6.25")
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=3)
    drawn = engine.tokens([PROMPTS[3]] * SAMPLES, params)
    assert Joint(PROMPTS[3], 3, temperature=1.0, top_p=0.9).p_value(drawn) > FALSE_ALARM
    # A control: another temperature gives another distribution.
    assert Joint(PROMPTS[3], 3, temperature=1.3).p_value(drawn) < FALSE_ALARM


def test_a_verification_with_another_q_would_be_caught(
    engine: Engine, drafters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of draft states are eight times theirs, so `q` is an eighth of what was drawn from."""
    engine.use(drafters / "pruned-6.25")
    own = DraftArena._keep

    def keep(self: DraftArena, slots: Tensor, step: Tensor, *rows: Tensor | None) -> None:
        logits, stats, *dynamic = rows
        own(self, slots, step, logits, stats * torch.tensor([1.0, 8.0]), *dynamic)

    monkeypatch.setattr(DraftArena, "_keep", keep)
    params = SamplingParams(temperature=1.0, max_tokens=3)
    drawn = engine.tokens([PROMPTS[3]] * 384, params)
    assert Joint(PROMPTS[3], 3, temperature=1.0).p_value(drawn) < FALSE_ALARM


def test_a_grammar_gives_the_distribution_of_the_target_among_its_words(
    engine: Engine, drafters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.use(drafters / "virtual-25")
    judged = []
    own = Verifier._rejected_by_grammar

    def rejected_by_grammar(self: Verifier, logits: Tensor, input_batch: Any) -> Tensor:
        judged.append(rows := own(self, logits, input_batch))
        return rows

    monkeypatch.setattr(Verifier, "_rejected_by_grammar", rejected_by_grammar)
    drawn = engine.tokens([PROMPTS[7]] * SAMPLES, with_grammar(1.0))
    assert sum(int(rows.sum()) for rows in judged) > 50
    counts = Counter(map(tuple, drawn))
    expected = joint_of_words(PROMPTS[7], WORDS, 3, temperature=1.0)
    assert p_value(expected, counts, SAMPLES) > FALSE_ALARM
    # A control: another temperature gives another distribution.
    other = joint_of_words(PROMPTS[7], WORDS, 3, temperature=2.0)
    assert p_value(other, counts, SAMPLES) < FALSE_ALARM


@pytest.mark.parametrize("name", [None, "virtual-eagle3", "virtual-dynamic-eagle3"])
def test_greedy_text_with_eagle3_is_that_of_plain_vllm(
    name: str | None, by_states: Engine, plain: dict[str, Any], drafters: Path
) -> None:
    by_states.use(None if name is None else drafters / name)
    said, accepted = by_states.drafted(PROMPTS[:6], GREEDY)
    assert said == plain["greedy"]
    assert accepted > 0.5


def test_a_seed_with_eagle3_gives_the_text_of_our_decoder(
    by_states: Engine, drafters: Path
) -> None:
    """Alone and among others, but for the last token, as with model runner V1."""
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


@pytest.mark.parametrize("method", ["token", "block"])
def test_first_tokens_with_eagle3_have_the_joint_distribution_of_the_target(
    method: Method, by_states: Engine, drafters: Path
) -> None:
    by_states.use(None if method == "token" else drafters / "virtual-eagle3")
    by_states.verify_by(method)
    drawn = by_states.tokens([PROMPTS[3]] * SAMPLES, SamplingParams(temperature=1.0, max_tokens=3))
    assert Joint(PROMPTS[3], 3, temperature=1.0).p_value(drawn) > FALSE_ALARM
    # A control: another temperature gives another distribution.
    assert Joint(PROMPTS[3], 3, temperature=1.3).p_value(drawn) < FALSE_ALARM


@pytest.mark.parametrize(
    ("compared", "forgotten", "lossless"),
    [(True, "forbidden", True), (False, "forbidden", False), (False, "all", True)],
)
def test_a_draft_that_a_grammar_forbids_is_rejected_and_not_forgotten(
    compared: bool, forgotten: str, lossless: bool
) -> None:
    """One draft for each of many requests. vLLM's way, to forget the forbidden, is the control.

    To forget all of a step is right, because it does not depend on their tokens.
    """
    p = torch.tensor([0.3, 0.2, 0.1, 0.05, 0.05, 0.1, 0.1, 0.1])
    q = torch.tensor([0.05, 0.05, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1])
    forbidden = torch.arange(8) < 2
    masked = torch.where(forbidden, -torch.inf, p.log())
    verifier, batch, drawn = one_draft_each(q.log(), samples=12_000)
    assert 0.05 < forbidden[drawn].double().mean() < 0.15
    invalid = torch.zeros(len(drawn), 2, dtype=torch.bool)
    invalid[:, 1] = forbidden[drawn] | (forgotten == "all")
    verifier.validated = frozenset(batch.req_ids if compared else ())
    rows = torch.stack([masked, p.log()]).repeat(len(drawn), 1)
    decided = verifier(rows, batch, None, invalid.flatten()).sampled_token_ids[:, 0]
    expected = {(token,): p for token, p in enumerate(masked.softmax(-1).tolist())}
    counts = Counter((token,) for token in decided.tolist())
    assert (p_value(expected, counts, len(drawn)) > FALSE_ALARM) == lossless


def one_draft_each(logits: Tensor, samples: int) -> tuple[Verifier, Any, Tensor]:
    """V2's samplers as the worker replaces them, a batch in V2's layout, and what was drafted."""
    arena = DraftArena(Affinity.intersection(Vocabulary.identity(8)), samples, draft_length=1)
    slots = torch.arange(samples).roll(3)
    states = SamplingStates(samples, 8)
    states.temperature.np[:], states.seeds.np[:] = 1, np.arange(samples)
    states.apply_staged_writes()
    own = SimpleNamespace(
        compute_nans=False,
        logprobs_mode="raw_logprobs",
        needs_logits_processing=np.zeros(samples, dtype=bool),
        req_states=SimpleNamespace(prefill_len=UvaBackedTensor(samples, dtype=torch.int32)),
        return_sampling_mask=False,
        sampling_states=states,
    )
    drawn = arena.draft(
        logits.expand(samples, 8).contiguous(),
        0,
        slots=slots,
        temperature=torch.ones(samples),
        seeds=states.seeds.gpu[slots],
        positions=torch.full((samples,), 7),
    )
    batch = SimpleNamespace(
        num_reqs=samples,
        req_ids=[str(slot) for slot in slots.tolist()],
        idx_mapping=slots,
        idx_mapping_np=slots.numpy(),
        expanded_idx_mapping=slots.repeat_interleave(2),
        expanded_local_pos=torch.tensor([0, 1]).repeat(samples),
        cu_num_logits=torch.arange(0, 2 * samples + 1, 2, dtype=torch.int32),
        cu_num_logits_np=np.arange(0, 2 * samples + 1, 2),
        logits_indices=torch.arange(2 * samples),
        input_ids=torch.stack([torch.full_like(drawn, 5), drawn], 1).flatten().int(),
        positions=torch.tensor([6, 7]).repeat(samples),
        seq_lens=torch.full((samples,), 8, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.full((samples,), 8, dtype=torch.int32),
    )
    options = SimpleNamespace(
        num_speculative_tokens=1,
        enable_adaptive_verification=False,
        rejection_sample_method="standard",
    )
    sampler = TokenSampler(own, SimpleNamespace(arena=arena), "token")
    return Verifier(sampler, options, arena.device), batch, drawn
