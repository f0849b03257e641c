"""Stopping criteria that remember, and threads: both find with `Generate` what `generate` shows.

With lm_eval installed, the criterion of lm-evaluation-harness is the package's own.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", minversion="5.0")
from transformers import LogitsProcessor, StoppingCriteria

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterChain, DrafterTree, Proposer
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.proposal import Proposal, Step
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.generate import Generate
from rdk_cuda.integrations.huggingface.library import given_cache

from ..versions.__main__ import BUILD, ROOT, create, pip
from .pair import PAD, SIZE, drafter, full, padded, pruned, target
from .test_generate import NearlyGreedy, Puts, StopAfter

LENGTHS, WIDTH = (4, 17, 1, 8), 17
ENDS = {"eos_token_id": [3, 40], "pad_token_id": PAD}


class Letters:
    """A tokenizer, as far as the harness needs one."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(letter) - 256 for letter in text]

    def batch_decode(self, ids: Tensor) -> list[str]:
        return ["".join(chr(256 + token) for token in row) for row in ids.tolist()]


class MultiTokenEOSCriteria(StoppingCriteria):
    """That of lm_eval 0.4.13, restated: says once that all rows have had the text at some time."""

    def __init__(self, sequence: str, tokenizer: Any, prompt: int, batch_size: int) -> None:
        self.prompt, self.sequence, self.done = prompt, sequence, [False] * batch_size
        self.tokenizer, self.lookback = tokenizer, len(tokenizer.encode(sequence)) + 2

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> bool:  # type: ignore[override]
        texts = self.tokenizer.batch_decode(input_ids[:, self.prompt :][:, -self.lookback :])
        self.done = [a or self.sequence in b for a, b in zip(self.done, texts, strict=True)]
        return False not in self.done


HARNESS: Any = MultiTokenEOSCriteria
if importlib.util.find_spec("lm_eval"):
    HARNESS = importlib.import_module("lm_eval.models.utils_hf").MultiTokenEOSCriteria


class Asked(StoppingCriteria):
    """Keeps what it was shown, and answers by a function of that and of how often it was asked."""

    def __init__(self, answer: Callable[[Tensor, int], Any] = lambda *_: False) -> None:
        self.answer, self.shown = answer, list[list[list[int]]]()

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        self.shown.append(input_ids.tolist())
        return self.answer(input_ids, len(self.shown))


def texts(rows: int, *tokens: int) -> list[Any]:
    return [HARNESS(chr(256 + token), Letters(), WIDTH, rows) for token in tokens]


def by_calls(ids: Tensor, calls: int) -> Tensor:
    return calls == torch.tensor([19, 4, 30, 11]).repeat(2)[: len(ids)]


BY_ROW: Any = StopAfter(range(0, SIZE, 9), 11)
CRITERIA: dict[str, Callable[[int], list[Any]]] = {
    "none": lambda _: [],
    HARNESS.__module__: lambda rows: texts(rows, 24),
    "two texts": lambda rows: texts(rows, 43, 52),
    "one bool": lambda _: [Asked(lambda ids, _: int((ids[:, WIDTH:] == 52).any(1).sum()) > 2)],
    "a tensor by row": lambda _: [Asked(BY_ROW)],
    "calls": lambda _: [Asked(by_calls)],
    "all": lambda rows: [*texts(rows, 24), Asked(BY_ROW), Asked(by_calls)],
}

RETURNED = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "no end token": {},
    "end tokens": ENDS,
    "a static cache and a length": {"max_length": 31, "cache_implementation": "static", **ENDS},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, **RETURNED, **ENDS},
    "one row": ENDS,
    "two of each": {
        **{"do_sample": True, "top_k": 0, "num_return_sequences": 2, **ENDS},
        "logits_processor": [NearlyGreedy(1.0)],
    },
}


class Uneven(Proposer):
    """Knows what some rows are going to say, and nothing about the others."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts = texts

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        known = [
            self.texts[b][len(s.new) :][: max(0, min(9, room - 1))] if b % 3 == 0 else []
            for b, (s, room) in enumerate(zip(sequences, step.room, strict=True))
        ]
        return Proposal.fixed(known, step)


def tree() -> Generate:
    drafts, same = HuggingFaceModel(drafter()), Affinity.intersection(Vocabulary.identity(SIZE))
    return Generate(DrafterTree(drafts, same, nodes=6))


def library(criteria: Sequence[Any] = (), **options: Any) -> Any:
    own = {"do_sample": False, **({} if "max_length" in options else {"max_new_tokens": 32})}
    return target().generate(**{**own, **options}, stopping_criteria=list(criteria))


PROPOSERS = ["chain", "tree", "uneven", pytest.param("pruned", marks=pytest.mark.ci)]


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("criteria", CRITERIA)
def test_criteria_are_asked_once_for_each_length_and_shown_what_generate_shows(
    criteria: str, proposer: str
) -> None:
    """And tokens, the streamer, scores and logits are those of `generate`."""
    for name, options in OPTIONS.items():
        inputs = padded(*LENGTHS[1:2]) if name == "one row" else padded(*LENGTHS)
        rows = len(inputs["input_ids"]) * options.get("num_return_sequences", 1)
        generate = {"chain": full, "pruned": pruned, "tree": tree}.get(proposer, full)()
        if proposer == "uneven":
            free = library(**inputs, **{**options, **RETURNED}).sequences[:, WIDTH:]
            generate = Generate(Uneven(free.tolist()))
        found, seen = [], []
        for ours in (True, False):
            streamer, asked = Puts(), [*CRITERIA[criteria](rows), Asked()]
            generate.streamer = streamer
            how = {"custom_generate": generate} if ours else {"streamer": streamer}
            found.append(library(asked, **inputs, **options, **how))
            shown = [each.shown for each in asked if isinstance(each, Asked)]
            seen.append((shown, streamer.got, streamer.ended))
        assert type(found[0]) is type(found[1])
        tokens, right = (getattr(each, "sequences", each) for each in found)
        assert torch.equal(tokens, right), name
        assert seen[0] == seen[1], name
        new, pad = right[:, WIDTH:], options.get("pad_token_id", -1)
        own = new.flip(1).ne(pad).cummax(1).values.flip(1)  # not padded to its end
        assert generate.statistics.tokens == int(own.sum()), name  # type: ignore[union-attr]
        for which in ("scores", "logits") if "output_scores" in options else ():
            expected = torch.stack(found[1][which], 1).where(own[:, :, None], 0)
            assert {each.dtype for each in found[0][which]} == {expected.dtype}
            assert torch.allclose(torch.stack(found[0][which], 1), expected, rtol=0, atol=2e-3)
            assert given_cache(found[0])[1] is None


class Counting(LogitsProcessor):
    """Remembers the newest token of each prefix, and forbids it from then on for some time."""

    def __init__(self) -> None:
        self.seen = list[int]()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(int(input_ids[0, -1]))
        return scores.index_fill(1, torch.tensor(self.seen[-5:]), -1e9)


def test_a_processor_that_remembers_sees_one_greedy_row_s_own_tokens_once() -> None:
    for ends in ({}, ENDS):
        own, theirs = Counting(), Counting()
        ours = library(**padded(9), **ends, custom_generate=full(), logits_processor=[own])
        assert torch.equal(ours, library(**padded(9), **ends, logits_processor=[theirs]))
        assert own.seen == theirs.seen


class Asking(Proposer):
    """One of one's own, which asks another."""

    def __init__(self, inner: DrafterChain) -> None:
        self.inner = inner
        self.reset, self.rollback = inner.reset, inner.rollback  # type: ignore[method-assign]
        self.propose = inner.propose  # type: ignore[method-assign]

    @property
    def drawn_with(self) -> Affinity | None:
        return self.inner.drawn_with


@pytest.mark.parametrize("shared", ["generate", "drafter", "tree", "inner"])
def test_threads_that_share_a_generate_or_what_drafts_wait_for_each_other(shared: str) -> None:
    same, parts = pruned(), {"drafter": HuggingFaceModel(drafter()), "tree": tree().drafter}
    every = Affinity.intersection(Vocabulary.identity(SIZE))
    asking = Asking(DrafterChain(parts["drafter"], every))
    turns = itertools.cycle([asking, parts["drafter"]])  # one drafts inside of the other
    make = (lambda: Generate(parts[shared])) if shared in parts else (lambda: same)
    make = (lambda: Generate(next(turns))) if shared == "inner" else make
    inputs = [padded(*LENGTHS[seed % 3 :], seed=seed) for seed in range(4)]
    expected = [library(**each, **ENDS) for each in inputs]
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(library, **i, **ENDS, custom_generate=make()) for i in inputs * 2]
        for each, right in zip(found, expected * 2, strict=True):
            assert torch.equal(each.result(), right)
    assert torch.equal(
        library(**inputs[0], **ENDS, custom_generate=copy.deepcopy(same)), expected[0]
    )


def test_a_call_inside_of_a_call_is_refused_and_the_next_one_is_served() -> None:
    generate = full()

    def again(*_: Any) -> Any:
        return library(**padded(4), custom_generate=generate)

    for criteria, generate.streamer in (([Asked(again)], None), ([], SimpleNamespace(put=again))):
        with pytest.raises(RuntimeError, match="Generate: called by a streamer, a criterion or a"):
            library(criteria, **padded(4, 9), custom_generate=generate)
    generate.streamer = None
    ours = library(**padded(4, 9), custom_generate=generate)
    assert torch.equal(ours, library(**padded(4, 9)))


@pytest.mark.night
def test_the_criterion_of_the_harness_itself_finds_what_it_finds_in_generate() -> None:
    python = create(BUILD / "lm_eval")
    pip(python, "lm_eval", "--no-deps", "lm_eval==0.4.13")
    command = [python, "-m", "pytest", "-v", "-m", "not night", "-k", "asked_once", __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "lm_eval.models.utils_hf" in done.stdout
