"""Refuses, by name, what `Generate` or `model.generate(...)` was asked for and cannot be done."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList
from transformers.generation import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper

from ...decoding import Proposer
from ...vocabulary import Vocabulary
from .image_prompts import ARGUMENTS, TYPES, has_images, is_empty
from .library import CACHE_ARGUMENTS, given_cache, tokens_in

_MODES = ("greedy_search", "sample")

# Options that would be ignored, and why; refused unless they have the library's default.
_OPTIONS = {
    "assistant_confidence_threshold": "Generate drafts draft_length tokens",
    "assistant_ensemble_weight": "it would change the distribution of the output",
    "compile_config": "Generate runs the models as they are",
    "guidance_scale": "its second pass keeps a cache that cannot roll back",
    "is_assistant": "Generate is for the target",
    "num_assistant_tokens": "Generate(draft_length=...) says how many",
    "num_assistant_tokens_schedule": "Generate's draft_length stays the same",
    "prefill_chunk_size": "Generate reads prompts in pieces of its own",
}
_OPTIONS |= dict.fromkeys(("cache_config", "max_cache_len"), "Generate has a cache of its own")
_OPTIONS |= dict.fromkeys(
    ("output_attentions", "output_hidden_states"), "passes read drafts that are rejected, too"
)
_OTHER_DRAFTERS = {"assistant_early_exit", "assistant_lookbehind", "max_matching_ngram_size"}
_OTHER_DRAFTERS |= {"prompt_lookup_num_tokens", "speculation_type", "target_lookbehind", "use_mtp"}
_OPTIONS |= dict.fromkeys(_OTHER_DRAFTERS, "the drafter is the one given to Generate")

_CACHES = (None, "dynamic", "static")

# Processors that remember what they were called with, and would remember rejected drafts.
_STATEFUL = {
    "DiaEOSDelayPatternLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}

# The library itself puts these there.
_MODEL_ARGUMENTS = {
    "attention_mask",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "position_ids",
    "use_cache",
    *CACHE_ARGUMENTS,
}


def refuse_other_kinds(drafter: Any, vocabulary: Any, drafter_tokenizer: Any, length: Any) -> None:
    """Refuse arguments of `Generate` of another kind than it takes."""
    own = f"a drafter with tokens of its own, and {type(drafter).__name__} proposes the target's"
    for argument, given, fits, needs in (
        ("vocabulary", vocabulary, isinstance(vocabulary, Vocabulary), "a Vocabulary"),
        ("drafter_tokenizer", drafter_tokenizer, not isinstance(drafter, Proposer), own),
        ("length", length, callable(length), "a rule, as rdk_cuda.decoding.lengths.Product(0.3)"),
    ):
        if given is not None and not fits:
            raise TypeError(f"Generate: {argument} is {given!r:.40}; needs {needs}")


def refuse_dropped_arguments() -> None:
    """Refuse arguments that `generate` does not pass on to a callable `custom_generate`.

    A callable is not told that they were given, so they are read from the frame of the calling
    `generate`.

    Raises:
        ValueError: `assistant_model`, `streamer` or `synced_gpus` was given.
    """
    given = _locals_of_generate()
    instead = {
        "assistant_model": "give the drafter to Generate",
        "streamer": "give it to Generate(streamer=...)",
        "synced_gpus": "Generate does not run models that are sharded over processes",
    }
    for name, advice in instead.items():
        if given.get(name):
            raise ValueError(
                f"Generate: {name} was given to model.generate, which does not pass it on to "
                f"custom_generate; {advice}"
            )


def refuse_unsupported(
    model: Any, config: Any, processors: Iterable[Any], model_arguments: Mapping[str, Any]
) -> None:
    """Refuse models and options for which the output would not be what was asked for.

    Args:
        model: the target.
        config: the `GenerationConfig` that the library has prepared.
        processors: of its logits, prepared by the library.
        model_arguments: what else `generate` would hand to the model's forward.

    Raises:
        TypeError: a kind of model that cannot do it.
        ValueError: an option or an argument.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise TypeError(f"Generate: {name} is an encoder-decoder; needs a causal language model")
    if model.training:
        raise ValueError(f"Generate: {name} is in training mode; call model.eval() first")
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise ValueError(
            f"Generate: {name} is spread over the devices {model.hf_device_map}; needs one device"
        )
    mode = config.get_generation_mode()
    if mode not in _MODES:
        raise ValueError(
            f"Generate: the options ask for {mode.value}; needs {' or '.join(_MODES)} (one beam, "
            "no penalty_alpha, dola_layers, constraints or assistant of the library)"
        )
    _refuse_options(config, getattr(model, "generation_config", None))
    for processor in processors:
        for kind in type(processor).__mro__:
            if kind.__name__ in _STATEFUL:
                raise ValueError(
                    f"Generate: {kind.__name__} remembers the prefixes it has seen, and would "
                    "remember rejected drafts; leave out the option that asks for it"
                )
    reads = ARGUMENTS if model.config.model_type in TYPES else set()
    for argument, value in model_arguments.items():
        others = isinstance(value, Mapping) and argument in reads and value.keys() - {"image"}
        is_known = argument in _MODEL_ARGUMENTS | reads or (
            argument != "token_type_ids" and is_empty(argument, value)
        )
        if others or not is_known:
            raise ValueError(
                f"Generate: {argument} was given for the model's forward; needs input_ids and "
                f"attention_mask alone, or images and one of the types {', '.join(sorted(TYPES))}"
            )
    argument, cache = given_cache(model_arguments)
    if cache is not None and (count := tokens_in(cache)) > 0:
        raise ValueError(
            f"Generate: {argument} has {count} tokens; needs none, or an empty one, since the "
            "cache is Generate's own: give the whole input_ids"
        )


def prompts_of(input_ids: Tensor, model_arguments: Mapping[str, Any]) -> list[list[int]]:
    """The rows of `input_ids [B, W]` without the padding on their left.

    Raises:
        ValueError: padding elsewhere, or positions that do not count the other tokens.
    """
    mask = model_arguments.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(input_ids)
    mask = mask.to(input_ids.device, torch.int64)
    lengths = mask.sum(1)
    left = torch.arange(mask.shape[1], device=mask.device) >= mask.shape[1] - lengths[:, None]
    if mask.shape != input_ids.shape or not torch.equal(mask, left.to(mask)) or not lengths.all():
        raise ValueError(
            "Generate: attention_mask has to be 0 on the left of each row and 1 at its tokens, of "
            "which there is at least one; use a tokenizer with padding_side='left'"
        )
    positions = model_arguments.get("position_ids")
    if positions is not None and not (positions.dim() == 3 and has_images(model_arguments)):
        # Or [n, B, W], also of times, heights and widths: all are alike without images.
        fits = positions.dim() in (2, 3) and positions.shape[-1] == mask.shape[1]
        fits = fits and positions.shape[-2] in (1, len(mask))
        expected = mask.cumsum(1) - 1
        if not fits or bool(((positions.to(mask.device) != expected) & (mask > 0)).any()):
            raise ValueError(
                "Generate: position_ids do not count the tokens of each row from 0; leave them out"
            )
    rows = zip(input_ids.tolist(), lengths.tolist(), strict=True)
    return [row[len(row) - length :] for row, length in rows]


def _refuse_options(config: Any, models_own: Any) -> None:
    """Refuse options of a call. Those that a model's files have are left out where that fits."""
    given = _locals_of_generate().get("kwargs") or {}
    own = {
        name
        for name in ("output_attentions", "output_hidden_states", "use_cache")
        if name not in given and getattr(config, name) == getattr(models_own, name, None)
    }
    if config.cache_implementation not in _CACHES:
        raise ValueError(
            f"Generate: cache_implementation is {config.cache_implementation!r}; needs "
            f"{' or '.join(map(repr, _CACHES))}"
        )
    if config.use_cache is False and "use_cache" not in own:
        raise ValueError("Generate: use_cache is False; needs its cache, so leave it out")
    defaults = {"guidance_scale": 1, **config._get_default_generation_params()}
    for option, reason in _OPTIONS.items():
        value = getattr(config, option, None)
        if value not in (None, False, defaults.get(option)) and option not in own:
            raise ValueError(
                f"Generate: {option} is {value!r}, which is not supported: {reason}; leave it out"
            )


def _locals_of_generate() -> Mapping[str, Any]:
    code, frame = inspect.unwrap(GenerationMixin.generate).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


class Sampling(NamedTuple):
    """Changes of the target's logits, and what `verify` does to them afterwards."""

    processors: LogitsProcessorList | None
    temperature: float
    draft_temperature: float | None
    top_k: int | None = None
    min_p: float | None = None


def sampling_of(
    prepared: Sequence[Any], do_sample: bool, *, keep: bool, truncates: bool
) -> Sampling:
    """Leave what comes last to `verify`, unless the returned scores have to have it.

    That is a temperature and, if it `truncates`, top-k and min-p, in the library's order.
    """
    processors = LogitsProcessorList(prepared)
    if not do_sample:
        return Sampling(processors or None, 0.0, None)
    temperatures = [each for each in processors if type(each) is TemperatureLogitsWarper]
    scale = float(math.prod(each.temperature for each in temperatures))
    left: dict[type, Any] = {}
    for kind in (MinPLogitsWarper, TopKLogitsWarper, TemperatureLogitsWarper):
        last = processors[-1] if processors and not keep else None
        # A subclass may do anything: it is called, as a processor.
        if type(last) is kind and (
            kind is TemperatureLogitsWarper or (truncates and _is_plain(last))
        ):
            left[kind] = processors.pop()
    temperature = float(getattr(left.get(TemperatureLogitsWarper), "temperature", 1.0))
    top_k = getattr(left.get(TopKLogitsWarper), "top_k", None)
    min_p = getattr(left.get(MinPLogitsWarper), "min_p", None)
    return Sampling(processors or None, temperature, scale, top_k, min_p)


def _is_plain(warper: Any) -> bool:
    """Whether it leaves out what it leaves out, and keeps no token on other grounds."""
    plain = not isinstance(warper, MinPLogitsWarper) or warper.min_tokens_to_keep == 1
    return bool(plain and warper.filter_value == -math.inf)
