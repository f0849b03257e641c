"""The plugin around a stand-in for SGLang: what is drawn, and what is decided.

The stand-in serves tables, so the exact distribution of the output is known. False alarms and
controls are those of `tests/proof/statistics/chi_square.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.engine_version import UnknownEngineError
from rdk_cuda.integrations.sglang import plugin
from rdk_cuda.integrations.sglang.drafting import DraftWorker, seeds_of
from rdk_cuda.integrations.sglang.server_options import UnsupportedConfigurationError
from tests.engines.engine_hooks import SGLANG
from tests.engines.engine_sources import differences
from tests.generators import generator
from tests.proof.statistics.chi_square import CERTAIN, assert_fits, p_value

from . import fake_sglang
from .fake_sglang import TARGET_SIZE, TOP_K_ALL, WIDTH, Model, prefilled, step

PROMPT, NEWEST, TOKENS, SAMPLES = [3, 1, 4], 2, 3, 5000
EMBEDDING = torch.randn(TARGET_SIZE, WIDTH, generator=generator(1))
HEAD = torch.randn(TARGET_SIZE, WIDTH, generator=generator(2)) / 2
TARGET = EMBEDDING @ HEAD.T + 0.7 * torch.randn(TARGET_SIZE, TARGET_SIZE, generator=generator(3))
KEPT = [0, 2]
ROWS: list[dict[int, float]] = [{0: 1}, {2: 1}, {1: 0.5, 3: 0.3, 4: 0.2}]  # the last is virtual


def pruned() -> PrunedDrafter:
    """Two kept tokens and a virtual one."""
    vocabulary = Vocabulary(KEPT, TARGET_SIZE)
    weight = torch.stack([HEAD[0], HEAD[2], HEAD[[1, 3, 4]].mean(0)])
    return PrunedDrafter(vocabulary, Affinity.from_rows(ROWS, target_size=TARGET_SIZE), weight)


def sampling(count: int, seeded: bool = False, **options: Any) -> SimpleNamespace:
    """Of `count` requests alike; options are temperature, top_k, top_p, min_p, and fields."""
    temperature, top_k = options.pop("temperature", 1.0), options.pop("top_k", TOP_K_ALL)
    top_p, min_p = options.pop("top_p", 1.0), options.pop("min_p", 0.0)
    fields = {"logit_bias": None, "acc_additive_penalties": None, "acc_scaling_penalties": None}
    return SimpleNamespace(
        temperatures=torch.full((count, 1), temperature),
        top_ks=torch.full((count,), top_k, dtype=torch.int32),
        top_ps=torch.full((count,), top_p),
        min_ps=torch.full((count,), min_p),
        sampling_seed=torch.arange(count) + 7 if seeded else None,
        need_top_k_sampling=top_k != TOP_K_ALL,
        need_top_p_sampling=top_p != 1.0,
        need_min_p_sampling=min_p > 0,
        is_all_greedy=top_k <= 1,
        **fields | options,
    )


def worker_of(sglang: Any, own: DraftWorker, hot: Tensor | None = None, kind: str = "Eagle") -> Any:
    plugin._install(own)
    head = HEAD if hot is None else HEAD[hot]
    worker = getattr(sglang, f"{kind}DraftWorker")(Model(EMBEDDING, head, hot))
    pool = SimpleNamespace(req_to_token=torch.zeros(SAMPLES + 1, 8))
    worker.alloc_memory_pool(pool)
    return worker


def said(
    sglang: Any,
    worker: Any,
    info: SimpleNamespace,
    mask: Any = None,
    between: Callable[[], None] = lambda: None,
) -> tuple[list[list[int]], int]:
    """At least TOKENS tokens of each request, and how many drafts were accepted on the way."""
    requests = prefilled(worker, PROMPT, NEWEST, info)
    random = generator(5)
    order = torch.arange(len(requests.newest))
    while min(map(len, requests.said)) < TOKENS:
        shuffled = torch.randperm(len(order), generator=random)
        requests.reordered(shuffled)
        order = order[shuffled]
        between()
        step(sglang, worker, TARGET, requests, mask)
    back = order.argsort().tolist()
    return [requests.said[b] for b in back], requests.accepted


def counts(tokens: list[list[int]]) -> Tensor:
    joint = torch.zeros(TARGET_SIZE**TOKENS, dtype=torch.int64)
    for row in tokens:
        a, b, c = row[:TOKENS]
        joint[(a * TARGET_SIZE + b) * TARGET_SIZE + c] += 1
    return joint


def exact(processed: Callable[[Tensor], Tensor]) -> Tensor:
    """Of the first three tokens; `processed` gives a row of logits its probabilities."""
    rows = torch.stack([processed(row) for row in TARGET.double()])
    return torch.stack(
        [
            rows[NEWEST, a] * rows[a, b] * rows[b, c]
            for a, b, c in product(range(TARGET_SIZE), repeat=TOKENS)
        ]
    )


def top_p(row: Tensor) -> Tensor:
    probs, order = row.softmax(-1).sort(descending=True)
    probs[probs.cumsum(-1) - probs >= 0.8] = 0
    return torch.zeros_like(probs).scatter(0, order, probs / probs.sum())


def kept(row: Tensor, keep: Tensor) -> Tensor:
    return row.masked_fill(~keep, -torch.inf).softmax(-1)


BIAS = torch.tensor([0.0, 2.0, -1.0, 0.0, 0.5])
ALLOWED = torch.tensor([True, False, True, True, False])
SETTINGS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "T = 0.7": ({"temperature": 0.7}, lambda row: (row / 0.7).softmax(-1)),
    "seeds": ({"seeded": True}, lambda row: row.softmax(-1)),
    "by block": ({"seeded": True}, lambda row: row.softmax(-1)),
    "top-k 3": ({"top_k": 3}, lambda row: kept(row, row >= row.sort().values[-3])),
    "top-p 0.8": ({"top_p": 0.8, "seeded": True}, top_p),
    "min-p 0.3": (
        {"min_p": 0.3},
        lambda row: kept(row, row.softmax(-1) >= 0.3 * row.softmax(-1).max()),
    ),
    "bias": (
        {"logit_bias": BIAS.repeat(SAMPLES, 1)},
        lambda row: (row + BIAS.double()).softmax(-1),
    ),
    "grammar": ({"temperature": 0.7}, lambda row: kept(row / 0.7, ALLOWED)),
}


class Mask:
    """SGLang's `GrammarMask`, of a grammar that allows the same tokens everywhere."""

    def __init__(self, tokens: Tensor) -> None:
        pass

    def apply(self, logits: Tensor) -> None:
        logits.masked_fill_(~ALLOWED, -torch.inf)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_output_has_the_targets_distribution(sglang: Any, name: str) -> None:
    options, processed = SETTINGS[name]
    torch.manual_seed(11)
    own = DraftWorker(pruned(), "block" if name == "by block" else "token")
    worker = worker_of(sglang, own)
    verify, methods = own.arena.verify, set()

    def noted(*arguments: Any, **options: Any) -> Any:
        methods.add(options["method"])
        return verify(*arguments, **options)

    own.arena.verify = noted  # type: ignore[method-assign]
    mask = Mask if name == "grammar" else None
    tokens, accepted = said(sglang, worker, sampling(SAMPLES, **options), mask)
    assert methods == {own.method}
    assert_fits(counts(tokens), exact(processed))
    assert accepted > SAMPLES / 2
    # The control: the right output is not that of other parameters.
    assert p_value(counts(tokens), exact(lambda row: (row / 1.2).softmax(-1))) < CERTAIN


@pytest.mark.parametrize("seeded", [False, True])
def test_what_another_step_drew_from_is_caught(sglang: Any, seeded: bool) -> None:
    """The control of the test above: the arena's rows in another order."""
    torch.manual_seed(12)
    own = DraftWorker(pruned())
    worker = worker_of(sglang, own)
    original = own.arena.verify

    def verify(*arguments: Any, **options: Any) -> Any:
        own.arena.rows.logits.copy_(own.arena.rows.logits.flip(1).clone())
        own.arena.rows.stats.copy_(own.arena.rows.stats.flip(1).clone())
        return original(*arguments, **options)

    own.arena.verify = verify  # type: ignore[method-assign]
    tokens, _ = said(sglang, worker, sampling(SAMPLES, seeded))
    assert p_value(counts(tokens), exact(lambda row: row.softmax(-1))) < CERTAIN


def test_slots_that_are_given_to_other_requests_hold_what_those_drafted(sglang: Any) -> None:
    """Half of the requests end after one step, and others take their slots and join the rest."""
    torch.manual_seed(15)
    worker, half = worker_of(sglang, DraftWorker(pruned())), SAMPLES // 2
    requests = prefilled(worker, PROMPT, NEWEST, sampling(SAMPLES))
    step(sglang, worker, TARGET, requests)
    free = requests.slots[:half]
    requests.reordered(torch.arange(half, SAMPLES))
    requests.joined_by(prefilled(worker, PROMPT, NEWEST, sampling(half), free))
    assert len(requests.slots.unique()) == SAMPLES
    while min(map(len, requests.said)) < TOKENS:
        step(sglang, worker, TARGET, requests)
    assert_fits(counts(requests.said[:half]), exact(lambda row: row.softmax(-1)))
    assert_fits(counts(requests.said[half:]), exact(lambda row: row.softmax(-1)))


def greedy_text(length: int) -> list[int]:
    text, newest = [], NEWEST
    for _ in range(length):
        newest = int(TARGET[newest].argmax())
        text.append(newest)
    return text


@pytest.mark.parametrize("kind", ["Eagle", "Standalone"])
def test_greedy_text_is_the_targets(sglang: Any, kind: str) -> None:
    worker = worker_of(sglang, DraftWorker(pruned()), kind=kind)
    tokens, _ = said(sglang, worker, sampling(6, top_k=1))
    assert [row[:TOKENS] for row in tokens] == [greedy_text(TOKENS)] * 6


def test_a_calibrated_head_may_be_wider_than_the_models_own(sglang: Any) -> None:
    """Of an EAGLE-3 drafter with virtual tokens: SGLang cuts logits off at its own width."""
    torch.manual_seed(16)
    worker = worker_of(sglang, DraftWorker(pruned()), torch.tensor(KEPT))
    assert worker.draft_runner.model.logits(torch.tensor([1])).shape == (1, len(ROWS))
    tokens, _ = said(sglang, worker, sampling(SAMPLES))
    assert_fits(counts(tokens), exact(lambda row: row.softmax(-1)))


def test_a_greedy_request_among_others_is_greedy(sglang: Any) -> None:
    worker = worker_of(sglang, DraftWorker(pruned()))
    info = sampling(40)
    info.top_ks[::2], info.need_top_k_sampling = 1, True
    tokens, _ = said(sglang, worker, info)
    assert [row[:TOKENS] for row in tokens[::2]] == [greedy_text(TOKENS)] * 20
    assert any(row[:TOKENS] != greedy_text(TOKENS) for row in tokens[1::2])


def test_a_seed_gives_the_same_text_alone_and_among_others(sglang: Any) -> None:
    worker = worker_of(sglang, DraftWorker(pruned()))
    together, _ = said(sglang, worker, sampling(16, seeded=True))
    for b in (0, 9):
        info = sampling(1, seeded=True)
        info.sampling_seed = torch.tensor([7 + b])
        alone, _ = said(sglang, worker, info)
        assert alone[0][:TOKENS] == together[b][:TOKENS]
    assert len({tuple(row[:TOKENS]) for row in together}) > 3  # the control


def test_the_models_own_reduced_vocabulary_is_served(sglang: Any) -> None:
    """An EAGLE-3 head's own map: what SGLang refuses above temperature 0."""
    torch.manual_seed(13)
    hot = torch.tensor([4, 0, 3])
    worker = worker_of(sglang, DraftWorker(None), hot)
    assert worker.hot_token_id is None
    tokens, accepted = said(sglang, worker, sampling(SAMPLES))
    assert_fits(counts(tokens), exact(lambda row: row.softmax(-1)))
    assert accepted > SAMPLES / 4


def test_penalties_are_applied_as_sglang_applies_them(sglang: Any) -> None:
    additive, scaling = torch.zeros(8, TARGET_SIZE), torch.ones(8, TARGET_SIZE)
    additive[:, 0], scaling[:, 1] = -50, 40
    best = (TARGET.clone() + additive[0]).div_(scaling[0]) * torch.where(
        TARGET < 0, scaling[0] ** 2, 1
    )
    worker = worker_of(sglang, DraftWorker(pruned()))
    info = sampling(8, top_k=1, acc_additive_penalties=additive, acc_scaling_penalties=scaling)
    tokens, _ = said(sglang, worker, info)
    assert tokens[0][0] == int(best[NEWEST].argmax())
    assert tokens[0][1] == int(best[tokens[0][0]].argmax())


def test_a_row_without_distribution_gets_a_token(sglang: Any) -> None:
    """The grammar allows nothing; SGLang needs one token a step in any case."""
    worker = worker_of(sglang, DraftWorker(pruned()))
    requests = prefilled(worker, PROMPT, NEWEST, sampling(3))

    class Nothing(Mask):
        def apply(self, logits: Tensor) -> None:
            logits.fill_(-torch.inf)

    step(sglang, worker, TARGET, requests, Nothing)
    assert requests.said == [[0]] * 3


def test_what_a_graph_reads_is_one_wide(sglang: Any) -> None:
    worker_of(sglang, DraftWorker(pruned()))
    runner = sglang.EAGLEDraftCudaGraphRunner(1000)
    assert runner.capture_one_shape(3, None).tolist() == [[0.0]] * 3


def test_an_idle_batch_is_sglangs(sglang: Any) -> None:
    worker_of(sglang, DraftWorker(pruned()))
    batch = SimpleNamespace(forward_mode=sglang.ForwardMode.IDLE)
    assert [len(part) for part in sglang.eagle_sample(None, batch, None)] == [0, 0, 0]


def test_a_draw_elsewhere_stops_it(sglang: Any) -> None:
    worker_of(sglang, DraftWorker(pruned()))
    logits, ones = torch.zeros(1, 3), torch.ones(1, 1)
    for draw in (
        lambda: sglang.fast_sample(logits.softmax(-1)),
        lambda: sglang.sample_draft_proposal(logits, ones, positions=torch.zeros(1)),
        lambda: sglang.renorm_draft_probs(logits, sampling(1), True),
    ):
        with pytest.raises(RuntimeError, match="drew a draft where none was expected"):
            draw()


def test_without_seeds_every_draw_has_its_own() -> None:
    like = torch.zeros(3, dtype=torch.int64)
    assert not torch.equal(seeds_of(None, like), seeds_of(None, like))
    own = torch.tensor([1, 2, 3])
    assert seeds_of(own, like) is own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: delattr(model, "logits_processor"), "has no logits_processor or no lm_head"),
        (lambda model: setattr(model.lm_head, "weight", None), "whose head is not quantised"),
        (lambda model: model.lm_head.to(torch.float64), "whose weight is float32, float16 or b"),
        (
            lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(torch.ones(5, 3))),
            r"has \[V_t, d\] = \[5, 8\]; the served models have \[5, 3\]",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    sglang: Any, change: Callable[[Any], None], said: str
) -> None:
    plugin._install(DraftWorker(pruned()))
    model = Model(EMBEDDING, HEAD)
    change(model)
    with pytest.raises(UnsupportedConfigurationError, match=said):
        sglang.EagleDraftWorker(model).alloc_memory_pool(
            SimpleNamespace(req_to_token=torch.zeros(4, 4))
        )


# Hooks.

WRAPPED = {f"{hook.module}.{hook.name}": hook for hook in SGLANG if hook.replaced}


def test_what_the_plugin_wraps_is_checked_in_sglangs_sources() -> None:
    assert set(WRAPPED) == {plugin.CREATE_WORKER, *plugin.AROUND, plugin.EAGLE_SAMPLE}


def test_the_stand_in_has_the_signatures_and_calls_that_are_checked() -> None:
    own = Path(fake_sglang.__file__).read_text()
    methods = tuple(
        hook._replace(calls=tuple(set(hook.calls) - {"draft_forward"}))
        for hook in WRAPPED.values()
        if "." in hook.name
    )
    assert differences(methods, lambda module: own) == []


def test_another_plugins_hooks_are_not_overridden(sglang: Any) -> None:
    sglang.HookRegistry._patched.add("sglang.srt.speculative.eagle_utils.eagle_sample")
    with pytest.raises(UnknownEngineError, match=r"another plugin has hooks on .*eagle_sample"):
        plugin._install(DraftWorker(pruned()))
    assert sglang.HookRegistry._hooks == {}


def test_hooks_that_sglang_does_not_apply_stop_it(
    sglang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang.HookRegistry, "apply_hooks", lambda: None)
    with pytest.raises(UnknownEngineError, match="could not apply hooks to"):
        plugin._install(DraftWorker(pruned()))
