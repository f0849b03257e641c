"""What holds for every proposer and rule, with sampling parameters and on the kernels, too.

The decoder on emulated kernels writes what it writes on the CPU, so what the chi-square tests say
holds for the kernels, too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

import lossless
from lossless import ALL_LIMITS, CONDITIONS, PROPOSERS, Condition, p_value
from table_model import TableModel, continuations, greedy
from test_parts import (
    CAUGHT,
    DRAFTER,
    FALSE_ALARM,
    PROMPT,
    SAMPLES,
    SIZE,
    TARGET,
    Dropping,
    chain,
    decoder,
)
from test_trees_in_the_loop import RandomTrees, mixed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rdk_cuda
from rdk_cuda.decoding import DrafterChain, SpeculativeDecoder
from rdk_cuda.decoding.trees import DraftTree
from tests.devices import in_the_emulator

METHODS = ["token", "block"]
PROMPTS = [[1], [4, 4, 5, 4], [0, 3, 5, 2, 0, 3], [2, 2]]
BATCH: dict[str, Any] = {
    "max_new_tokens": [6, 9, 12, 3],
    "temperature": [1.0, 0.0, 0.6, 0.8],
    "seeds": [7, 8, 9, 10],
    "logprobs": "processed",
}
LIMITS: dict[str, Any] = {"top_k": [3, 0, 4, 2], "top_p": 0.9, "min_p": 0.05}

# Of every proposer with every rule two conditions, so that each is met by many of both.
PAIRS = [(name, method) for name in PROPOSERS for method in METHODS]
TABLE = [
    pytest.param(*pair, list(CONDITIONS)[(n + 4 * later) % len(CONDITIONS)], marks=marks)
    for later, marks in ((0, ()), (1, pytest.mark.ci))
    for n, pair in enumerate(PAIRS)
]


@pytest.mark.usefixtures("cpu_or_cuda")
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize(("name", "method", "condition"), TABLE)
def test_every_proposer_is_lossless_under_every_rule(
    name: str, method: str, condition: str, samples: int
) -> None:
    assert p_value(PROPOSERS[name], method, CONDITIONS[condition], samples) > FALSE_ALARM


def test_the_target_alone_is_sampled_exactly() -> None:
    alone = SpeculativeDecoder(TARGET, draft_length=0)
    for condition in (CONDITIONS["as it is"], CONDITIONS["a mask and all limits"]):
        options: dict[str, Any] = {"temperature": condition.temperature, **condition.limits}
        options["allowed"] = lossless.allowed if condition.masks else None
        found = continuations(lambda: alone, PROMPT, lossless.LENGTH, 4_000, **options)
        assert lossless.judged(found, condition) > FALSE_ALARM


# ------------------------------------------------------------------------------- controls


def with_another_verify(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Drafts are judged by other values of these fields, each made of the draft."""
    verify = rdk_cuda.verify

    def wrong(logits: Tensor, draft: Any, *rest: Any, **options: Any) -> Any:
        if draft.logits is not None:
            draft = replace(draft, **{name: make(draft) for name, make in changes.items()})
        return verify(logits, draft, *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify", wrong)


def q_at_another_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    colder = {"temperature": lambda draft: draft.temperature * 1.5}
    with_another_verify(monkeypatch, stats=lambda draft: None, **colder)


def dynamic_tokens_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = dict.fromkeys(("dynamic_tokens", "dynamic_logits"), lambda draft: None)
    with_another_verify(monkeypatch, **fields)


def one_key_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdk_cuda._ops, "step_keys", lambda seeds, positions: seeds)
    monkeypatch.setattr(DrafterChain, "_rows_for", lambda *step: None)  # keys are made in Python


def offers_that_depend_on_the_drawn_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the screened tokens only the one that was drawn is offered, and q is what follows."""
    draft = rdk_cuda.draft

    def peeking(*arguments: Any, **options: Any) -> Any:
        drawn = draft(*arguments, **options)
        others = drawn.dynamic_tokens != drawn.tokens[..., None]
        kept = drawn.dynamic_tokens.masked_fill(others, -1)
        return replace(drawn, stats=None, dynamic_tokens=kept)

    monkeypatch.setattr(rdk_cuda.functional, "draft", peeking)


def limits_for_acceptance_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual is that of all tokens."""
    verify = rdk_cuda.verify

    def wrong(logits: Tensor, draft: Any, affinity: Any, temperature: Any, **limits: Any) -> Any:
        truncated = verify(logits, draft, affinity, temperature, **limits)
        plain = verify(logits, draft, affinity, temperature)
        same = (truncated.num_accepted == plain.num_accepted)[:, None]
        return truncated._replace(tokens=torch.where(same, plain.tokens, truncated.tokens))

    monkeypatch.setattr(rdk_cuda.functional, "verify", wrong)


def rows_with_the_fixed_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left in the rows that the drawn one is judged by."""
    draft = rdk_cuda.draft

    def unmasked(draft_logits: Tensor, *given: Any, **options: Any) -> Any:
        drawn = draft(draft_logits, *given, **options)
        return replace(drawn, logits=draft_logits.nan_to_num(neginf=0.0))

    monkeypatch.setattr(rdk_cuda.functional, "draft", unmasked)


def unlikely_nodes_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    add = DraftTree.add

    def wrong(self: DraftTree, parent: int, fixed: Any, drawn: int, row: int) -> None:
        add(self, parent, fixed, drawn if drawn < 3 else -1, row)

    monkeypatch.setattr(DraftTree, "add", wrong)


def target_rows_of_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = rdk_cuda.verify_tree

    def wrong(logits: Tensor, *rest: Any, **options: Any) -> Any:
        return walk(torch.cat([logits[:, :1], logits[:, 1:].roll(1, 1)], 1), *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify_tree", wrong)


def one_position_for_all_steps_of_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first token of a step looks right, and the joint does not."""
    walk = rdk_cuda.verify_tree

    def wrong(*given: Any, **options: Any) -> Any:
        return walk(*given, **options | {"positions": torch.zeros_like(options["positions"])})

    monkeypatch.setattr(rdk_cuda.functional, "verify_tree", wrong)


def drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing: the proposer is the mistake."""


MISTAKES: dict[str, tuple[Any, Any, str, int]] = {
    "unlikely drafts dropped": (drafted, lambda: chain(Dropping), "as it is", 4_000),
    "q at another temperature": (q_at_another_temperature, chain, "as it is", 8_000),
    "dynamic tokens forgotten": (
        *(dynamic_tokens_forgotten, PROPOSERS["dynamic, all that was drafted"], "as it is", 4_000),
    ),
    "one key for all steps": (
        *(one_key_for_all_steps, PROPOSERS["rejected drafts again"], "as it is", 12_000),
    ),
    "offers that depend on the drawn token": (
        offers_that_depend_on_the_drawn_token,
        PROPOSERS["dynamic, screened"],
        "as it is",
        4_000,
    ),
    "limits for acceptance alone": (limits_for_acceptance_alone, chain, "all limits", 4_000),
    "rows with the fixed tokens": (rows_with_the_fixed_tokens, mixed, "as it is", 2_000),
    "unlikely nodes dropped": (unlikely_nodes_dropped, mixed, "as it is", 2_000),
    "target rows of other nodes": (target_rows_of_other_nodes, RandomTrees, "as it is", 2_000),
    "one position for all steps of trees": (
        *(one_position_for_all_steps_of_trees, RandomTrees, "as it is", 2_000),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_control_a_mistake_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake, make, condition, samples = MISTAKES[name]
    mistake(monkeypatch)
    for method in METHODS if mistake is drafted else METHODS[:1]:
        assert p_value(make, method, CONDITIONS[condition], samples) < CAUGHT


def test_drafts_inside_the_limits_are_others_and_more_are_accepted() -> None:
    drafter, rates = TableModel(DRAFTER, SIZE), []
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.3, "seeds": 3, "top_p": 0.6}
    for truncate_drafts in (False, True):
        decoder = SpeculativeDecoder(TARGET, drafter, truncate_drafts=truncate_drafts)
        statistics = decoder.generate([PROMPT] * 500, **options).statistics
        rates.append(statistics.mean_accepted_length)
    assert rates[1] > 1.05 * rates[0]


@pytest.mark.parametrize("name", ["chain", "dynamic, all that was drafted"])
def test_drafts_that_limits_cut_are_lossless_and_what_forgets_where_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the columns are: the drafter's two tokens and two virtual ones, and dynamic ones."""
    halves = Condition(1.0, {"top_k": 2})
    assert p_value(PROPOSERS[name], "token", halves, 8_000) > FALSE_ALARM
    with_another_verify(monkeypatch, stats=lambda draft: draft.stats[..., :-1].contiguous())
    assert p_value(PROPOSERS[name], "token", halves, 8_000) < CAUGHT


def test_control_other_limits_are_caught() -> None:
    """Also top-p over all tokens, which is not top-p over what top-k leaves."""
    colder = Condition(0.8, ALL_LIMITS | {"top_p": 0.8})
    assert p_value(chain, "token", CONDITIONS["all limits"], 2_000, colder) < CAUGHT
    hot = Condition(1.5, {"top_k": 4, "top_p": 0.9})
    assert p_value(chain, "token", hot, 4_000) > FALSE_ALARM
    assert p_value(chain, "token", hot, 4_000, Condition(1.5, {"top_p": 0.9})) < CAUGHT


# ------------------------------------------------------------------------------- to the token


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PROPOSERS)
def test_at_temperature_0_the_text_is_the_target_s_own(name: str, method: str) -> None:
    limits = [30, 2, 17, 1]
    made, cut = decoder(PROPOSERS[name](), method), {"top_k": 1, "top_p": 0.1, "min_p": 0.5}
    result = made.generate(PROMPTS, max_new_tokens=limits, temperature=0, **cut)
    expected = zip(PROMPTS, limits, strict=True)
    assert result.tokens == [greedy(TARGET, prompt, limit) for prompt, limit in expected]
    assert sum(result.statistics.accepted) > 0
    assert result.statistics.tokens == sum(limits)
    assert result.logprobs == [[]] * 4


# Where prompts differ, that one does not see where sequences begin.
@pytest.mark.parametrize(
    ("name", "method"), [pair for pair in PAIRS if pair[0] != "rejected drafts again"]
)
def test_a_sequence_is_the_same_alone_and_in_a_batch(name: str, method: str) -> None:
    """With its log-probabilities, also where it has no drafts and others do, or ends."""
    options: dict[str, Any] = {"max_new_tokens": [20, 1, 30, 25], "seeds": [3, -4, 5, 2**62]}
    options |= {"temperature": [1.0, 0.7, 0.0, 1.3], "top_k": [0, 3, 4, 2], "min_p": [0.02] * 4}
    options["eos"] = [{5}, {0}, set(), {1, 2}]
    make = PROPOSERS[name]
    together = decoder(make(), method).generate(PROMPTS, **options, logprobs="processed")
    for b, prompt in enumerate(PROMPTS):
        own = {name: [values[b]] for name, values in options.items()}
        alone = decoder(make(), method).generate([prompt], **own, logprobs="processed")
        assert alone.tokens == [together.tokens[b]]
        assert alone.logprobs == [together.logprobs[b]]


@pytest.mark.parametrize("temperature", [0.8, 1.0, 0.0])
@pytest.mark.parametrize("of", ["processed", "raw"])
@pytest.mark.parametrize("name", ["chain", "tree, mixed"])
def test_log_probabilities_are_those_of_each_token_when_it_was_decided(
    name: str, of: Any, temperature: float
) -> None:
    """Of sequences of different lengths, parallel to their tokens, an end token included."""
    prompts = [PROMPT, [1], [3, 3, 0]]
    options: dict[str, Any] = {"eos": [[1], [], []], "allowed": lossless.allowed, "logprobs": of}
    tokens, _, logprobs = decoder(PROPOSERS[name]()).generate(
        prompts,
        max_new_tokens=[40, 7, 0],
        temperature=temperature,
        seeds=5,
        **ALL_LIMITS,
        **options,
    )
    assert [len(own) for own in logprobs] == [len(own) for own in tokens]
    assert len(tokens[1]) == 7
    truncated = lossless.processed(temperature or 1.0, True, **ALL_LIMITS)
    for prompt, new, own in zip(prompts, tokens, logprobs, strict=True):
        text = list(prompt)
        for token, logprob in zip(new, own, strict=True):
            row = truncated.logits(text).double()
            if temperature == 0:
                allowed = lossless.ALLOWED[text[-1]]
                assert token == int(TARGET.logits(text).masked_fill(~allowed, -math.inf).argmax())
            exact = (row if of == "processed" else TARGET.logits(text).double()).log_softmax(0)
            expected = 0.0 if of == "processed" and temperature == 0 else float(exact[token])
            assert abs(logprob - expected) < 1e-5
            text.append(token)


class Namespaces(TorchDispatchMode):
    """Of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.namespace)
        return func(*args, **kwargs or {})


def outputs(made: SpeculativeDecoder, **limits: Any) -> list[Any]:
    """Tokens, statistics, and log-probabilities to four places."""
    tokens, statistics, logprobs = made.generate(PROMPTS, **BATCH, **limits)
    rounded = [[round(each, 4) + 0.0 for each in row] for row in logprobs]
    return [tokens, vars(statistics), rounded]


@pytest.mark.ci
@pytest.mark.parametrize(("name", "method"), [PAIRS[2 * n + n % 2] for n in range(len(PROPOSERS))])
def test_every_proposer_and_rule_is_on_the_kernels_as_on_the_cpu(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both() -> list[Any]:
        make = PROPOSERS[name]
        return [outputs(decoder(make(), method)), outputs(decoder(make(), method), **LIMITS)]

    expected = both()
    with in_the_emulator(monkeypatch) as emulator, Namespaces() as called:
        emulator.set_machine(132, 1024, 8)
        assert both() == expected
    assert "rdk_emulated" in called.names
    assert "rdk" not in called.names
