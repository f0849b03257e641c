"""What `Generate` cannot honour is refused by name, before the first token."""

from __future__ import annotations

import copy
import dis
import inspect
from pathlib import Path
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


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("assistant_model", "a model", "give the drafter to Generate"),
        ("streamer", Nothing(), r"Generate\(streamer=...\)"),
        ("synced_gpus", True, "sharded"),
    ],
)
def test_arguments_that_generate_keeps_to_itself_are_refused(
    name: str, value: Any, advice: str
) -> None:
    """`generate` calls a callable without them, whether they were given or not."""
    given = drafter() if name == "assistant_model" else value
    with pytest.raises(ValueError, match=f"{name} was given to model.generate, .*{advice}"):
        generate(**{name: given})


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"num_beams": 2, "do_sample": True}, "beam_sample"),
        ({"penalty_alpha": 0.5, "top_k": 4}, "contrastive_search"),
        ({"dola_layers": "low"}, "dola_generation"),
        ({"force_words_ids": [[3]], "num_beams": 2}, "constrained_beam_search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"assistant_early_exit": 1}, "assisted_generation"),
        ({"use_mtp": True}, "assisted_generation"),
    ],
)
def test_other_kinds_of_generation_are_refused(options: dict[str, Any], mode: str) -> None:
    if not all(hasattr(transformers.GenerationConfig(), option) for option in options):
        pytest.skip(f"transformers {transformers.__version__} has no {' or '.join(options)}")
    with pytest.raises(ValueError, match=f"ask for {mode}; needs greedy_search or sample"):
        generate(**options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("assistant_confidence_threshold", 0.1),
        ("assistant_lookbehind", 3),
        ("cache_config", {"nbits": 4}),
        ("compile_config", transformers.CompileConfig()),
        ("guidance_scale", 1.5),
        ("is_assistant", True),
        ("max_cache_len", 64),
        ("max_matching_ngram_size", 2),
        ("num_assistant_tokens", 7),
        ("num_assistant_tokens_schedule", "heuristic"),
        ("output_attentions", True),
        ("output_hidden_states", True),
        ("assistant_ensemble_weight", 0.5),
        ("prefill_chunk_size", 4),
        ("speculation_type", "dflash"),
        ("target_lookbehind", 3),
    ],
)
def test_options_that_would_be_ignored_are_refused(option: str, value: Any) -> None:
    if not hasattr(transformers.GenerationConfig(), option):
        pytest.skip(f"transformers {transformers.__version__} has no {option}")
    options = {option: value, "return_dict_in_generate": option.startswith("output")}
    if option == "max_cache_len":
        options["cache_implementation"] = "static"
    with pytest.raises(ValueError, match=f"Generate: {option} is .*not supported: .*; leave it"):
        generate(**options)


def test_options_at_their_defaults_and_positions_that_count_are_not_refused() -> None:
    defaults = transformers.GenerationConfig._get_default_generation_params()
    names = ("num_assistant_tokens", "assistant_lookbehind", "assistant_confidence_threshold")
    given = {name: defaults[name] for name in names if name in defaults}
    positions = (padded(4, 9)["attention_mask"].cumsum(1) - 1).clamp(min=0)
    for options in ({**given, "guidance_scale": 1.0}, {"position_ids": positions}):
        with pytest.raises(pytest.fail.Exception, match="decoding began"):
            generate(**options, output_attentions=False)


def test_other_caches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # The library makes one before we are asked, and a torch with CUDA has none without a GPU.
    monkeypatch.setattr(torch, "Stream", object)
    for kind in ("offloaded", "offloaded_static"):
        with pytest.raises(ValueError, match=f"cache_implementation is '{kind}'; .*'static'"):
            generate(cache_implementation=kind)
    with pytest.raises(ValueError, match="use_cache is False"):
        generate(use_cache=False)


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


def test_processors_that_remember_are_refused() -> None:
    keys = [654, 400, 836, 123, 340]
    config = transformers.SynthIDTextWatermarkingConfig(keys=keys, ngram_len=5)
    with pytest.raises(ValueError, match="SynthIDTextWatermarkLogitsProcessor remembers"):
        generate(watermarking_config=config)

    class Own(transformers.SynthIDTextWatermarkLogitsProcessor):
        """A subclass remembers, too."""

    own = Own(5, keys, 2**8, 0, context_history_size=16, device="cpu")
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


@pytest.mark.parametrize(
    "mask", [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 0, 1, 1], [1, 1, 1, 1]], [[0] * 4, [1] * 4]]
)
def test_padding_elsewhere_than_on_the_left_is_refused(mask: list[list[int]]) -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with pytest.raises(ValueError, match=r"attention_mask has to be 0 on the left .*left"):
        generate(input_ids=ids, attention_mask=torch.tensor(mask))


def test_other_inputs_of_the_model_are_refused() -> None:
    inputs = padded(4, 9)
    shifted = torch.arange(9).expand(2, 9) + 3
    with pytest.raises(ValueError, match="position_ids do not count"):
        generate(position_ids=shifted)
    embeds = torch.zeros(2, 9, 32)
    with pytest.raises(ValueError, match="inputs_embeds was given"):
        generate(inputs_embeds=embeds)
    model = copy.deepcopy(target())
    forward = model.forward

    def with_types(input_ids: Any = None, token_type_ids: Any = None, **rest: Any) -> Any:
        return forward(input_ids=input_ids, **rest)

    model.forward = with_types
    with pytest.raises(ValueError, match="token_type_ids was given for the model's forward"):
        generate(model=model, token_type_ids=torch.zeros_like(inputs["input_ids"]))


def test_models_that_cannot_do_it_are_refused() -> None:
    size = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=SIZE, decoder_start_token_id=0, **size)
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(TypeError, match="T5ForConditionalGeneration is an encoder-decoder"):
        generate(model=t5)
    with pytest.raises(TypeError, match="encoder-decoder"):
        Generate(t5)
    with pytest.raises(ValueError, match="LlamaForCausalLM is in training mode"):
        generate(model=copy.deepcopy(target()).train())
    spread = copy.deepcopy(target())
    spread.hf_device_map = {"model": 0, "lm_head": "cpu"}
    with pytest.raises(ValueError, match="is spread over the devices"):
        generate(model=spread)


def test_drafters_that_cannot_do_it_are_refused() -> None:
    with pytest.raises(ValueError, match="training mode"):
        Generate(copy.deepcopy(drafter()).train())
    model = copy.deepcopy(drafter())
    drafts = HuggingFaceModel(model)
    same = Affinity.intersection(Vocabulary.identity(SIZE))
    later = [Generate(drafts), Generate(DrafterTree(drafts, same))]
    model.train()
    for each in later:
        with pytest.raises(ValueError, match="the drafter is in training mode"):
            generate(each)
    other = Affinity.intersection(Vocabulary([1, 2, 3], SIZE))
    with pytest.raises(ValueError, match=r"drafter predicts 61 tokens, and the affinity .* from 3"):
        generate(Generate(drafter(), other))
    larger = Affinity.intersection(Vocabulary(torch.arange(SIZE), SIZE + 1))
    with pytest.raises(ValueError, match=r"predicts 61 tokens, and affinity is of 62; needs"):
        generate(Generate(drafter(), larger))
    with pytest.raises(ValueError, match=r"predicts 61 tokens, and vocabulary is of 70; needs"):
        generate(Generate(drafter(), same, vocabulary=Vocabulary([1], 70)))
    with pytest.raises(ValueError, match="draft_length is 0"):
        Generate(drafter(), draft_length=0)
    with pytest.raises(ValueError, match="draft_temperature is -1"):
        generate(full(draft_temperature=-1.0))


class Elsewhere:
    """A drafter on another device."""

    vocabulary_size, device, lengths, context = SIZE, torch.device("meta"), (), 10

    def rollback(self, lengths: Any) -> None: ...
    def reset(self, batch_size: int) -> None: ...


def test_arguments_of_another_kind_are_named() -> None:
    elsewhere = Elsewhere()
    vocabulary: Any = Vocabulary.identity(SIZE)
    half: Any = 2.5
    with pytest.raises(TypeError, match="affinity is a Vocabulary; needs an Affinity"):
        generate(Generate(drafter(), vocabulary))
    with pytest.raises(TypeError, match=r"Generate: draft_length is 2\.5; needs an integer"):
        Generate(elsewhere, draft_length=half)
    affinity: Any = Affinity.intersection(vocabulary)
    with pytest.raises(TypeError, match=r"Generate: vocabulary is .* needs a Vocabulary"):
        Generate(elsewhere, vocabulary=affinity)
    with pytest.raises(TypeError, match=r"Generate: length is 2\.5; needs a rule"):
        Generate(elsewhere, length=half)
    with pytest.raises(TypeError, match=r"drafter_tokenizer is .* and NGrams proposes the target"):
        Generate(NGrams(), tokenizer=object(), drafter_tokenizer=object())


def test_a_drafter_on_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="the drafter is on meta, the model on cpu"):
        generate(Generate(Elsewhere()))


def test_a_directory_that_is_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedDrafterError, match="none has no drafter; needs the whole directory"):
        Generate.from_directory(tmp_path / "none")


class OwnEnd(StoppingCriteria):
    eos_token_id = PAD

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        return input_ids[:, -1] == self.eos_token_id


def test_an_end_token_without_a_pad_token_is_refused() -> None:
    criteria = transformers.StoppingCriteriaList([OwnEnd()])
    with pytest.raises(ValueError, match="there is no pad_token_id"):
        generate(stopping_criteria=criteria)
