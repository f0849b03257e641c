"""`model.generate(custom_generate=Generate(...))` returns what `model.generate()` returns."""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from operator import eq
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", minversion="5.0")
from tokenizers import Tokenizer, models
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    WatermarkingConfig,
)

from rdk_cuda import Affinity
from rdk_cuda.decoding import NGrams
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.generate import Generate
from rdk_cuda.integrations.huggingface.saved_drafter import save_drafter

from ..tiny_models import replace_head
from .pair import CONTEXT, PAD, SIZE, VOCABULARY, drafter, full, padded, pruned, target

NEW = 30
ENDS = [3, 17, 40, 51]  # four of 61 tokens: rows end at different places


class OwnPenalty(LogitsProcessor):
    """Another one for each row, by what the row has so far."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = torch.arange(len(input_ids))
        scores = scores.clone()
        scores[rows, (input_ids[:, -1] + 7 * rows) % SIZE] -= 20.0
        return scores


def allowed(row: int, ids: Tensor) -> list[int]:
    """Never a token of the last one's parity, nor, in row 0, a small one."""
    last = int(ids[-1])
    return [token for token in range(30 * (row == 0), SIZE) if (token + last) % 2]


PROCESSED: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeated n-grams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5], [12, 13], [9, 30]]},
    "sequence bias": {"sequence_bias": [[[8], 0.5], [[20, 21], -9.0]]},
    "suppressed tokens": {"suppress_tokens": [1, 2, 30], "begin_suppress_tokens": [4, 5, 6]},
    "a least length": {"eos_token_id": ENDS, "pad_token_id": PAD, "min_new_tokens": 12},
    "a least length with the prompt": {"eos_token_id": ENDS, "pad_token_id": PAD, "min_length": 30},
    "end tokens, of which the first is the pad token": {"eos_token_id": ENDS},
    "a forced end": {"eos_token_id": 3, "pad_token_id": PAD, "forced_eos_token_id": 3},
    "a decaying length": {
        "eos_token_id": ENDS,
        "pad_token_id": PAD,
        "exponential_decay_length_penalty": (5, 1.1),
    },
    "the prompt's own": {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
    "allowed tokens": {"prefix_allowed_tokens_fn": allowed},
    "a watermark": {"watermarking_config": WatermarkingConfig(greenlist_ratio=0.5, bias=4.0)},
    "one of the caller": {"logits_processor": LogitsProcessorList([OwnPenalty()])},
    "several": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "logits_processor": LogitsProcessorList([OwnPenalty()]),
        "renormalize_logits": True,
    },
}


def both(inputs: dict[str, Tensor], ours: Generate, **options: Any) -> tuple[Any, Any]:
    arguments = {**inputs, "do_sample": False, "max_new_tokens": NEW, **options}
    return target().generate(**arguments, custom_generate=ours), target().generate(**arguments)


@pytest.mark.parametrize("options", PROCESSED.values(), ids=list(PROCESSED))
def test_greedy_output_of_a_padded_batch_is_the_library_s_own(options: dict[str, Any]) -> None:
    generate = pruned()
    ours, expected = both(padded(4, 17, 1, 8), generate, **options)
    assert torch.equal(ours, expected)
    statistics = generate.statistics
    assert sum(statistics.accepted) > 0
    assert statistics.resampled > 0


def starts_alike(one: list[int], other: list[int]) -> bool:
    return all(map(eq, one, other))


class Language(LogitsProcessor, StoppingCriteria):
    """Knows what it has allowed itself, and what follows an end, behind prompts of 17 tokens."""

    def __init__(self) -> None:
        self.seen = list[list[int]]()

    def __call__(self, input_ids: Tensor, scores: Tensor | None) -> Tensor:
        self.seen += input_ids.tolist()
        for row in input_ids[:, 16:].tolist():
            own = row[: row.index(PAD, 1)] if PAD in row[1:] else row
            assert all((a + b) % 2 for a, b in pairwise(own))
            assert own == row or (own[-1] in ENDS and set(row[len(own) :]) == {PAD})
        if scores is None:
            return input_ids[:, -1] == 12
        tokens = torch.arange(SIZE)
        banned = ((input_ids[:, -1:] + tokens) % 2 == 0) | (tokens == PAD)
        return scores.masked_fill(banned, -torch.inf)


@pytest.mark.parametrize("ends", [{}, {"eos_token_id": ENDS, "pad_token_id": PAD}])
def test_rows_that_have_not_come_so_far_are_never_shown_with_what_they_have_not_written(
    ends: dict[str, Any],
) -> None:
    inputs, language = padded(4, 17, 1, 8), Language()
    generate = full(draft_length=6)
    ours, expected = both(
        inputs,
        generate,
        logits_processor=LogitsProcessorList([language]),
        stopping_criteria=StoppingCriteriaList([language] if not ends else []),
        **ends,
    )
    assert torch.equal(ours, expected)
    assert generate.statistics.resampled > 0
    written = ours.tolist()
    assert all(any(starts_alike(seen, row) for row in written) for seen in language.seen)


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_return_sequences": 2}])
def test_a_function_of_a_row_is_asked_about_that_row_s_own_prefixes(
    options: dict[str, Any],
) -> None:
    inputs, numbers = padded(4, 17, 8), set[tuple[int, int]]()
    prompts = inputs["input_ids"].tolist()

    def strict(number: int, ids: Tensor) -> list[int]:
        row = prompts.index(ids[:17].tolist())
        numbers.add((number, row))
        assert all((a - b) % 3 != row for a, b in pairwise(ids[16:].tolist()))
        return [token for token in range(SIZE) if (int(ids[-1]) - token) % 3 != row]

    arguments = {**inputs, "max_new_tokens": NEW, **options, "prefix_allowed_tokens_fn": strict}
    expected, of_library = target().generate(**arguments), numbers.copy()
    numbers.clear()
    generate = full(draft_length=6)
    ours = target().generate(**arguments, custom_generate=generate)
    assert numbers == of_library
    assert options or torch.equal(ours, expected)
    assert generate.statistics.resampled > 0


def test_copied_tokens_that_the_head_does_not_predict_are_rejected_with_processors_too() -> None:
    model = copy.deepcopy(target())
    replace_head(model, target().get_output_embeddings().weight[:50])
    inputs = {"input_ids": torch.tensor([[5, 55, 56, 7, 5, 55, 56, 7, 5]]), "max_new_tokens": 9}
    for options in ({}, {"suppress_tokens": [1, 2]}):
        ours = model.generate(**inputs, **options, custom_generate=Generate(NGrams()))
        assert torch.equal(ours, model.generate(**inputs, **options))


class StopAfter(StoppingCriteria):
    """Ends a row after a token, which may be another one in each row."""

    def __init__(self, tokens: Any, shift: int = 0) -> None:
        self.tokens, self.shift = torch.tensor(list(tokens)), shift

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        rows = torch.arange(len(input_ids))
        return torch.isin((input_ids[:, -1] + self.shift * rows) % SIZE, self.tokens)


LENGTHS: list[tuple[dict[str, Any], int]] = [
    ({"max_length": 30, "max_new_tokens": None}, 30),
    ({"max_length": 18, "max_new_tokens": None}, 18),
    ({"max_new_tokens": 1}, 18),
    ({"stopping_criteria": [MaxLengthCriteria(20)]}, 20),
    ({"stopping_criteria": [MaxLengthCriteria(50)]}, 50),
    ({"max_time": 1e-9}, 18),
]


@pytest.mark.parametrize(("options", "width"), LENGTHS)
def test_lengths_and_times_are_the_library_s(options: dict[str, Any], width: int) -> None:
    ours, expected = both(padded(4, 17, 1), pruned(), **options)
    assert torch.equal(ours, expected)
    assert ours.shape[1] == width


def test_stop_strings_end_rows_where_generate_ends_them(tiny: Any) -> None:
    """`generate(stop_strings=)` needs a tokenizer, which it keeps from any callable."""
    from transformers import StopStringCriteria

    text = tiny.tokenizer("def add(self, value):\n    return", return_tensors="pt")
    inputs = {name: text[name] for name in ("input_ids", "attention_mask")}
    options = {**inputs, "do_sample": False, "max_new_tokens": 60, "no_repeat_ngram_size": 2}
    free = tiny.target.generate(**options)
    new = tiny.tokenizer.decode(free[0, inputs["input_ids"].shape[1] :])
    part = re.findall(r"[ -~]{2}", new[len(new) // 3 :])[0]
    expected = tiny.target.generate(**options, stop_strings=part, tokenizer=tiny.tokenizer)
    assert expected.shape[1] < free.shape[1]
    for strings in (part, [part, "no such text"]):
        generate = Generate(tiny.drafter, stop_strings=strings, tokenizer=tiny.tokenizer)
        assert torch.equal(tiny.target.generate(**options, custom_generate=generate), expected)
    criteria = StoppingCriteriaList([StopStringCriteria(tiny.tokenizer, part)])
    generate = Generate(tiny.drafter)
    ours = tiny.target.generate(**options, stopping_criteria=criteria, custom_generate=generate)
    assert torch.equal(ours, expected)
    with pytest.raises(ValueError, match="could not locate a tokenizer"):
        tiny.target.generate(
            **inputs, stop_strings=part, tokenizer=tiny.tokenizer, custom_generate=generate
        )


def test_stop_strings_that_cannot_be_found_are_refused() -> None:
    for strings, tokenizer in (("x", None), (["x", ""], object())):
        with pytest.raises(ValueError, match=r"stop_strings is .*; needs texts that are not"):
            full(stop_strings=strings, tokenizer=tokenizer)


class Puts:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[list[Any]] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        assert not self.ended
        self.got.append(value.tolist())

    def end(self) -> None:
        self.ended += 1


def test_a_model_whose_own_head_is_small_drafts_with_it() -> None:
    small = copy.deepcopy(drafter())
    replace_head(small, drafter().get_output_embeddings().weight[VOCABULARY.draft_ids])
    generate = Generate(small, Affinity.intersection(VOCABULARY), vocabulary=VOCABULARY)
    ours, expected = both(padded(4, 17, 1), generate)
    assert torch.equal(ours, expected)
    assert sum(generate.statistics.accepted) > generate.statistics.out_of_vocabulary == 0


def test_a_seed_repeats_and_torch_s_own_seed_is_the_default() -> None:
    arguments = {**padded(4, 9), "max_new_tokens": 15, "do_sample": True, "num_return_sequences": 2}

    def sample(generate: Generate) -> Tensor:
        return target().generate(**arguments, custom_generate=generate)

    seeded = sample(full(seed=3))
    assert len({tuple(row) for row in seeded.tolist()}) == 4  # each has a seed of its own
    assert torch.equal(sample(full(seed=3)), seeded)
    assert not torch.equal(sample(full(seed=4)), seeded)
    generate = full()
    torch.manual_seed(8)
    first, second = sample(generate), sample(generate)
    torch.manual_seed(8)
    assert torch.equal(sample(generate), first)
    assert not torch.equal(first, second)


class NearlyGreedy(TemperatureLogitsWarper):
    """A temperature with a rule of its own."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores / 1e-4


@pytest.mark.parametrize("options", [{"top_k": 0}, {"top_k": 9}, {"temperature": 0.9}])
def test_a_temperature_warper_of_the_caller_is_called(options: dict[str, Any]) -> None:
    options = {"do_sample": True, "logits_processor": [NearlyGreedy(1.0)], **options}
    inputs = {**padded(4, 9), "max_new_tokens": NEW}
    ours = target().generate(**inputs, **options, custom_generate=full(seed=1))
    assert torch.equal(ours, target().generate(**inputs, do_sample=False))


def test_greedy_output_draws_nothing_from_torch_s_generator() -> None:
    generate = full(draft_temperature=1.0)
    both(padded(4, 9), generate)  # the models are made
    state = torch.get_rng_state()
    both(padded(4, 9), generate)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    inputs, seeds = padded(4, 17, 1, 8), [11, 12, 13, 14]
    options = {"max_new_tokens": 15, "do_sample": True, "top_p": 0.9, "repetition_penalty": 1.2}
    together = target().generate(**inputs, **options, custom_generate=pruned(seed=seeds))
    for row, seed in enumerate(seeds):
        alone = {name: values[row : row + 1] for name, values in inputs.items()}
        ours = target().generate(**alone, **options, custom_generate=pruned(seed=[seed]))
        assert torch.equal(ours[0], together[row])


def test_one_object_serves_several_targets_and_has_the_latest_statistics() -> None:
    generate = pruned()
    assert generate.statistics is None
    for model, new in ((target(), 7), (drafter(), 12), (target(), NEW)):
        arguments = {**padded(4, 9), "do_sample": False, "max_new_tokens": new}
        ours = model.generate(**arguments, custom_generate=generate)
        assert torch.equal(ours, model.generate(**arguments))
        assert generate.statistics.tokens == 2 * new
        assert generate.statistics.target_passes < 2 * new
    assert generate.statistics.out_of_vocabulary > 0  # type: ignore[union-attr]


def test_a_target_whose_vocabulary_was_resized_is_checked_anew() -> None:
    model, generate = copy.deepcopy(target()), Generate(NGrams())
    for size in (SIZE, SIZE + 4, SIZE - 11):
        model.resize_token_embeddings(size)
        arguments = {"input_ids": torch.tensor([[5, 3, 5, 3, size - 1]]), "max_new_tokens": NEW}
        ours = model.generate(**arguments, custom_generate=generate)
        assert torch.equal(ours, model.generate(**arguments))


def test_a_drafter_saved_by_calibration_is_loaded_with_all_that_belongs_to_it(
    tmp_path: Path,
) -> None:
    words = Tokenizer(models.WordLevel({f"word{id}": id for id in range(SIZE)}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    bound = pruned()
    assert isinstance(bound.drafter, HuggingFaceModel)
    part = PrunedDrafter(VOCABULARY, bound.affinity, *bound.drafter._head, bound.dynamic_tokens)
    save_drafter(tmp_path / "saved", drafter(), tokenizer, part, {})
    loaded = Generate.from_directory(tmp_path / "saved", draft_length=4)
    arguments = {**padded(4, 17), "max_new_tokens": NEW}
    for sampled in (False, True):
        bound.seed = loaded.seed = 3
        options = {**arguments, "do_sample": sampled}
        expected = target().generate(**options, custom_generate=bound)
        assert torch.equal(target().generate(**options, custom_generate=loaded), expected)
        assert loaded.statistics == bound.statistics
    assert loaded.statistics.out_of_vocabulary > 0
    bare = Generate.from_directory(tmp_path / "saved", dynamic_tokens=None)
    assert bare.dynamic_tokens is None


# What shows while it decodes.


def test_more_tokens_than_the_context_and_ids_that_are_no_tokens_are_refused() -> None:
    for new in (CONTEXT, 10**13):  # the latter are more than there is memory for
        streamer = Puts()
        with pytest.raises(ValueError, match=f"take {9 + new - 1} tokens of .* {CONTEXT}"):
            both(padded(4, 9), full(streamer=streamer), max_new_tokens=new)
        assert not streamer.got
    inputs = padded(4, 9)
    inputs["input_ids"][1, 3] = SIZE
    with pytest.raises(ValueError, match=r"\[0, 61\)"):
        both(inputs, full())


class Spoil(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.fill_(torch.nan)


def test_scores_that_are_no_distribution_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="no distribution: NaN"):
        both(padded(4), full(), logits_processor=LogitsProcessorList([Spoil()]))
