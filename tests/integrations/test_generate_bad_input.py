"""What `Generate` cannot honour is refused by name, before the first token."""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", minversion="5.0")
import transformers
from transformers import StoppingCriteria
from transformers.generation import logits_process

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterTree, NGrams, SpeculativeDecoder
from rdk_cuda.drafter import SavedDrafterError
from rdk_cuda.integrations.huggingface import HuggingFaceModel, generation_options
from rdk_cuda.integrations.huggingface.generate import Generate
from rdk_cuda.integrations.huggingface.library import CACHE_ARGUMENTS, cache_argument

from .pair import PAD, SIZE, drafter, full, padded, target

KEYS = [654, 400, 836, 123, 340]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be decoded."""

    def decoding(*_: Any, **__: Any) -> None:
        pytest.fail("decoding began")

    monkeypatch.setattr(SpeculativeDecoder, "generate", decoding)


def generate(custom: Generate | None = None, model: Any = None, **options: Any) -> Any:
    arguments = {**padded(4, 9), "max_new_tokens": 5, **options}
    return (model or target()).generate(**arguments, custom_generate=custom or full())


class Nothing:
    """A streamer."""

    def put(self, value: Tensor) -> None: ...
    def end(self) -> None: ...


KEPT, OTHER_MODE = "was given to model.generate, ", "needs greedy_search or sample"
IGNORED = r"is .*not supported: .*; leave it"
# `generate` calls a callable without the first three, whether they were given or not.
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"assistant_model": drafter()}, f"{KEPT}.*give the drafter to Generate"),
    ({"streamer": Nothing()}, rf"{KEPT}.*Generate\(streamer=...\)"),
    ({"synced_gpus": True}, f"{KEPT}.*sharded"),
    ({"num_beams": 2}, f"ask for beam_search; {OTHER_MODE}"),
    ({"num_beams": 2, "do_sample": True}, "ask for beam_sample; "),
    ({"penalty_alpha": 0.5, "top_k": 4}, "ask for contrastive_search; "),
    ({"dola_layers": "low"}, "ask for dola_generation; "),
    ({"force_words_ids": [[3]], "num_beams": 2}, "ask for constrained_beam_search; "),
    ({"prompt_lookup_num_tokens": 3}, "ask for assisted_generation; "),
    ({"assistant_early_exit": 1}, "ask for assisted_generation; "),
    ({"use_mtp": True}, "ask for assisted_generation; "),
    ({"assistant_confidence_threshold": 0.1}, IGNORED),
    ({"assistant_lookbehind": 3}, IGNORED),
    ({"cache_config": {"nbits": 4}}, IGNORED),
    ({"compile_config": transformers.CompileConfig()}, IGNORED),
    ({"guidance_scale": 1.5}, IGNORED),
    ({"is_assistant": True}, IGNORED),
    ({"max_cache_len": 64, "cache_implementation": "static"}, IGNORED),
    ({"max_matching_ngram_size": 2}, IGNORED),
    ({"num_assistant_tokens": 7}, IGNORED),
    ({"num_assistant_tokens_schedule": "heuristic"}, IGNORED),
    ({"output_attentions": True, "return_dict_in_generate": True}, IGNORED),
    ({"output_hidden_states": True, "return_dict_in_generate": True}, IGNORED),
    ({"assistant_ensemble_weight": 0.5}, IGNORED),
    ({"prefill_chunk_size": 4}, IGNORED),
    ({"speculation_type": "dflash"}, IGNORED),
    ({"target_lookbehind": 3}, IGNORED),
    ({"cache_implementation": "offloaded"}, "cache_implementation is 'offloaded'; .*'static'"),
    ({"cache_implementation": "offloaded_static"}, "is 'offloaded_static'; .*'static'"),
    ({"use_cache": False}, "use_cache is False"),
    ({"position_ids": torch.arange(9).expand(2, 9) + 3}, "position_ids do not count"),
    ({"inputs_embeds": torch.zeros(2, 9, 32)}, "inputs_embeds was given"),
    ({"watermarking_config": transformers.SynthIDTextWatermarkingConfig(keys=KEYS, ngram_len=5)},
     "SynthIDTextWatermarkLogitsProcessor remembers"),
    *(
        (
            {"input_ids": torch.arange(8).view(2, 4), "attention_mask": torch.tensor(mask)},
            r"attention_mask has to be 0 on the left .*left",
        )
        for mask in ([[1, 1, 1, 0], [1] * 4], [[1, 0, 1, 1], [1] * 4], [[0] * 4, [1] * 4])
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=[each[1][:40] for each in OPTIONS])
def test_options_that_would_be_ignored_or_mean_something_else_are_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library makes a stream before we are asked, and a torch with CUDA has none without a GPU.
    monkeypatch.setattr(torch, "Stream", object)
    first = next(iter(options))
    if message.startswith("ask for") or message is IGNORED:
        if not all(hasattr(transformers.GenerationConfig(), option) for option in options):
            pytest.skip(f"transformers {transformers.__version__} has no {first}")
        message = f"Generate: {first} {message}" if message is IGNORED else message
    elif message.startswith(KEPT):
        message = f"{first} {message}"
    with pytest.raises(ValueError, match=message):
        generate(**options)


def test_options_at_their_defaults_and_positions_that_count_are_not_refused() -> None:
    defaults = transformers.GenerationConfig._get_default_generation_params()
    names = ("num_assistant_tokens", "assistant_lookbehind", "assistant_confidence_threshold")
    given = {name: defaults[name] for name in names if name in defaults}
    positions = (padded(4, 9)["attention_mask"].cumsum(1) - 1).clamp(min=0)
    for options in ({**given, "guidance_scale": 1.0}, {"position_ids": positions}):
        with pytest.raises(pytest.fail.Exception, match="decoding began"):
            generate(**options, output_attentions=False)


@pytest.mark.parametrize("given", CACHE_ARGUMENTS)
@pytest.mark.filterwarnings("ignore:.(past_key_values|cache_params). is deprecated:FutureWarning")
def test_a_cache_with_tokens_is_refused_by_either_name(given: str) -> None:
    """Before 5.24, the library itself refuses the others."""
    cache, own = transformers.DynamicCache(), cache_argument(target())
    target()(torch.tensor([[1, 2], [3, 4]]), **{own: cache})
    reason = f"Generate: {own} has 2 tokens; needs none"
    if own == "past_key_values" and given != own:
        reason = rf"not used by the model: \['{given}'\]"
    with pytest.raises(ValueError, match=reason):
        generate(**{given: cache})


def test_a_subclass_of_a_processor_that_remembers_is_refused() -> None:
    class Own(transformers.SynthIDTextWatermarkLogitsProcessor):
        """It remembers, too."""

    own = Own(5, KEYS, 2**8, 0, context_history_size=16, device="cpu")
    with pytest.raises(ValueError, match="SynthIDTextWatermarkLogitsProcessor remembers"):
        generate(logits_processor=[own])


def test_every_processor_of_the_library_that_changes_itself_when_called_is_known() -> None:
    """Those that are not refused bring a tensor to the scores' device, or prepare one once."""
    changing = {
        name
        for name, kind in vars(logits_process).items()
        if isinstance(kind, type) and issubclass(kind, transformers.LogitsProcessor)
        for method in filter(inspect.isfunction, vars(kind).values())
        if not method.__name__.startswith(("__init__", "set_"))
        for instruction in dis.get_instructions(inspect.unwrap(method))
        if instruction.opname == "STORE_ATTR"
    }
    device = {"RepetitionPenaltyLogitsProcessor", "ExponentialDecayLengthPenalty"}
    others = {*device, "SequenceBiasLogitsProcessor", "WhisperNoSpeechDetection"}
    assert changing - others <= generation_options._STATEFUL
    assert "SynthIDTextWatermarkLogitsProcessor" in changing


def with_types() -> Any:
    """A model whose forward takes the types of tokens."""
    model = copy.deepcopy(target())
    forward = model.forward

    def typed(input_ids: Any = None, token_type_ids: Any = None, **rest: Any) -> Any:
        return forward(input_ids=input_ids, **rest)

    model.forward = typed
    return model


def t5() -> Any:
    size = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=SIZE, decoder_start_token_id=0, **size)
    return transformers.T5ForConditionalGeneration(config).eval()


def spread() -> Any:
    model = copy.deepcopy(target())
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    return model


def training(wrap: Any = lambda drafts: drafts) -> Generate:
    """A drafter that goes on to be trained."""
    drafts = HuggingFaceModel(copy.deepcopy(drafter()))
    made = Generate(wrap(drafts))
    drafts.model.train()
    return made


class Elsewhere:
    """A drafter on another device."""

    vocabulary_size, device, lengths, context = SIZE, torch.device("meta"), (), 10

    def rollback(self, lengths: Any) -> None: ...
    def reset(self, batch_size: int) -> None: ...


EVERY = Vocabulary.identity(SIZE)
SAME = Affinity.intersection(EVERY)
LARGER = Affinity.intersection(Vocabulary(torch.arange(SIZE), SIZE + 1))
# What is made of what, by what is said of it.
MODELS: dict[str, Callable[[], Any]] = {
    "token_type_ids was given for the model's forward": lambda: generate(
        model=with_types(), token_type_ids=torch.zeros(2, 9, dtype=torch.int64)
    ),
    "T5ForConditionalGeneration is an encoder-decoder": lambda: generate(model=t5()),
    "an encoder-decoder": lambda: Generate(t5()),
    "Generate: LlamaForCausalLM is in training mode": lambda: generate(
        model=copy.deepcopy(target()).train()
    ),
    "is spread over the devices": lambda: generate(model=spread()),
    "training mode": lambda: Generate(copy.deepcopy(drafter()).train()),
    "the drafter is in training mode": lambda: generate(training()),
    "the drafter .* training mode": lambda: generate(
        training(lambda drafts: DrafterTree(drafts, SAME))
    ),
    "predicts 61 tokens, and affinity is of 62": lambda: generate(Generate(drafter(), LARGER)),
    "predicts 61 tokens, and vocabulary is of 70; needs": lambda: generate(
        Generate(drafter(), SAME, vocabulary=Vocabulary([1], 70))
    ),
    "draft_length is 0": lambda: Generate(drafter(), draft_length=0),
    r"Generate: draft_length is 2\.5; needs an integer": lambda: Generate(
        Elsewhere(), draft_length=2.5
    ),
    "Generate: vocabulary is .* needs a Vocabulary": lambda: Generate(Elsewhere(), vocabulary=SAME),
    r"Generate: length is 2\.5; needs a rule": lambda: Generate(Elsewhere(), length=2.5),
    "drafter_tokenizer is .* and NGrams proposes the target": lambda: Generate(
        NGrams(), tokenizer=object(), drafter_tokenizer=object()
    ),
    "the drafter is on meta, the model on cpu": lambda: generate(Generate(Elsewhere())),
    "nowhere is no directory; needs one": lambda: Generate.from_directory("/nowhere"),
}


@pytest.mark.parametrize("message", MODELS)
def test_models_and_drafters_that_cannot_do_it_are_refused_by_name(message: str) -> None:
    with pytest.raises((TypeError, ValueError, SavedDrafterError), match=message):
        MODELS[message]()


class OwnEnd(StoppingCriteria):
    eos_token_id = PAD

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return input_ids[:, -1] == self.eos_token_id


def test_an_end_token_without_a_pad_token_is_refused() -> None:
    criteria = transformers.StoppingCriteriaList([OwnEnd()])
    with pytest.raises(ValueError, match="there is no pad_token_id"):
        generate(stopping_criteria=criteria)
