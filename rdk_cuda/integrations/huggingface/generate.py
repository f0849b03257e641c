"""Speculative decoding inside of Hugging Face's `model.generate`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from ..._ops.inputs import Integers, whole_number
from ...affinity import Affinity
from ...decoding import CausalModel, Proposer, TextDrafter
from ...decoding.decoder import refuse_beyond_context
from ...decoding.generation import Statistics
from ...decoding.lengths import Length
from ...dynamic_tokens import DynamicTokens
from ...functional import Method
from ...vocabulary import Vocabulary
from .generation_options import (
    prompts_of,
    refuse_dropped_arguments,
    refuse_other_kinds,
    refuse_unsupported,
    sampling_of,
)
from .image_prompts import ImagePrompts, has_images
from .library import drop_unused_cache
from .model import HuggingFaceModel
from .padded_batch import PaddedBatch, PaddedDecoder, ending_of, stop_strings_of
from .saved_drafter import calibrated_drafts, drafting_model, load_drafter
from .text_drafter import is_text_drafter, load_text_drafter


class Generate:
    """A drafter for `model.generate(**inputs, custom_generate=Generate(drafter, affinity))`.

    The output is that of `generate` alone (Transformers 5.0 or later): the same tokens where it is
    greedy, the same distribution where it samples. Batches, left padding, `GenerationConfig`,
    logits processors, stopping criteria and the returned class are the library's own, except that
    no cache is returned. Options that cannot be honoured are refused before the first token.
    `docs/tutorial.md` says what is asked of criteria and processors, and how threads take turns.

    Warpers such as top-p need scores that were divided by the temperature. So everything that the
    library has prepared is applied to the target's logits, in its order, but what comes last and
    `rdk_cuda.verify` does at the same point: a temperature and, on the CPU, top-k and min-p. Not
    top-p: of tokens that are equal at its threshold the library keeps some, `verify` all.

    Args:
        drafter: a causal language model of Hugging Face, or any `rdk_cuda.decoding.CausalModel`,
            such as `HuggingFaceModel(model, head=...)` or an `Eagle3Drafter`; or what proposes in
            its place, a `rdk_cuda.decoding.Proposer`, with its own settings.
        affinity: from the drafter's tokens to the target's; None if they have one vocabulary, whose
            heads may be padded to other widths.
        draft_length: K, the most tokens drafted for each pass of the target.
        length: as in `SpeculativeDecoder`: when a draft ends before that.
        draft_temperature: the drafter's; None: the one that `generate` samples at.
        method: of `rdk_cuda.verify`: "token", or "block", which accepts at least as many drafts on
            average.
        dynamic_tokens: a source, as in `SpeculativeDecoder`.
        vocabulary: the drafter's own tokens, for `statistics.out_of_vocabulary`.
        streamer: gets the tokens of a place as soon as all rows have one, as from `generate`.
        seed: one each, or one int from which each row gets its own, the same in every call. None:
            drawn for each call that samples from torch's default generator, which
            `torch.manual_seed` sets.
        stop_strings: any of them ends a row, as with `generate(stop_strings=...)`, which does not
            pass its `tokenizer` on and so cannot be used.
        tokenizer: the target's, for `stop_strings` and next to `drafter_tokenizer`.
        drafter_tokenizer: the drafter's, if it has one of its own, as in `SpeculativeDecoder`.

    Attributes:
        statistics: of the latest call, without dropped tokens; None before the first.

    Raises:
        TypeError, ValueError: a drafter that cannot do it. One that does not fit the affinity or
            the target is refused by the first call, as by `SpeculativeDecoder`.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> target, drafter = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
        >>> generate = Generate(drafter, draft_length=3)
        >>> options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
        >>> ids = torch.tensor([[5, 3], [7, 9]])
        >>> tokens = target.generate(ids, custom_generate=generate, **options)
        >>> torch.equal(tokens, target.generate(ids, **options))
        True
        >>> generate.statistics.tokens
        18
    """

    def __init__(
        self,
        drafter: Any,
        affinity: Affinity | None = None,
        *,
        draft_length: int = 4,
        draft_temperature: float | None = None,
        method: Method = "token",
        dynamic_tokens: DynamicTokens | None = None,
        vocabulary: Vocabulary | None = None,
        streamer: Any = None,
        seed: Integers | None = None,
        stop_strings: str | Sequence[str] = (),
        tokenizer: Any = None,
        drafter_tokenizer: Any = None,
        length: Length | None = None,
    ) -> None:
        refuse_other_kinds(drafter, vocabulary, drafter_tokenizer, length)
        if not hasattr(drafter, "rollback"):
            drafter = HuggingFaceModel(drafter, return_hidden=dynamic_tokens is not None)
        if drafter_tokenizer is not None:
            drafter = TextDrafter(drafter, drafter_tokenizer, tokenizer)
        self.drafter: CausalModel | Proposer = drafter
        draft_length = whole_number("Generate", "draft_length", draft_length, 1)
        self.affinity, self.draft_length, self.length = affinity, draft_length, length
        self.method: Method = method
        self.draft_temperature, self.dynamic_tokens = draft_temperature, dynamic_tokens
        self.vocabulary, self.streamer, self.seed = vocabulary, streamer, seed
        self.stopping_criteria = stop_strings_of(stop_strings, tokenizer)
        self.statistics: Statistics | None = None
        self._target: HuggingFaceModel | None = None
        self._target_of: list[Any] = []

    @classmethod
    def from_directory(
        cls,
        directory: str | PathLike[str],
        *,
        device: torch.device | str = "cpu",
        target: Any = None,
        **options: Any,
    ) -> Generate:
        """With a drafter that `python -m rdk_cuda calibrate` has written.

        Args:
            directory: as `load_drafter` reads it, or `load_text_drafter`.
            device: the target's.
            target: the model, for a drafter that reads its states: EAGLE's, or a multi-token head.
            options: of `Generate`. The defaults of `dynamic_tokens`, and of `length` and
                `draft_length` where `--draft-cost` was given, are the calibrated ones.

        Raises:
            SavedDrafterError: a directory that is not whole and sound.
        """
        if is_text_drafter(directory):
            text = load_text_drafter(directory, device=device)
            pair = {"tokenizer": text.tokenizer, "drafter_tokenizer": text.drafter_tokenizer}
            return cls(text.model, text.affinity, **{**pair, **options})
        drafter: Any
        if target is None:
            model, pruned, settings = load_drafter(directory, device=device)
            drafter = drafting_model(model, pruned)
        else:
            # This package's copy, by whatever name it was loaded; it imports this one.
            readers = import_module("..mtp", __package__)
            drafter, pruned, settings = readers.load_state_drafter(directory, target)
        own = {"dynamic_tokens": pruned.dynamic_tokens, "vocabulary": pruned.vocabulary}
        own |= calibrated_drafts(settings)
        return cls(drafter, pruned.affinity, **{**own, **options})

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Called by `model.generate` with what it has prepared.

        Returns:
            Token ids `[B, W + new]` int64, prompts included, padded after rows that have ended. Or,
            with `return_dict_in_generate`, the library's `GenerateDecoderOnlyOutput`, with scores
            and logits `[B, V_t]` float32 of each new token if asked for, 0 after a row has ended.

        Raises:
            TypeError, ValueError: an option that cannot be honoured, by name.
            RuntimeError: scores are no distribution: NaN or +inf, or none finite; or a call from
                inside of a call.
        """
        drop_unused_cache(model)
        refuse_dropped_arguments()
        refuse_unsupported(model, generation_config, logits_processor, model_kwargs)
        input_ids = input_ids.long()
        prompts = prompts_of(input_ids, model_kwargs)
        config = generation_config
        returned = {
            name: bool(config.return_dict_in_generate and getattr(config, f"output_{name}"))
            for name in ("scores", "logits")
        }
        sampling = sampling_of(
            logits_processor,
            config.do_sample,
            keep=returned["scores"],
            truncates=input_ids.device.type == "cpu",
        )
        with _one_at_a_time(self.drafter):
            decoder = self._decoder(model, sampling.draft_temperature)
            criteria = [*stopping_criteria, *self.stopping_criteria]
            ending = ending_of(criteria, config, input_ids.shape[1])
            longest = max(map(len, prompts)) + ending["limit"]
            refuse_beyond_context(decoder.target, longest)  # before there is memory for so many
            batch = PaddedBatch(
                input_ids,
                [len(prompt) for prompt in prompts],
                processors=sampling.processors,
                record=any(returned.values()),
                streamer=self.streamer,
                greedy=not config.do_sample,
                **ending,
            )
            decoder.padded = batch
            images = ImagePrompts(input_ids, model_kwargs) if has_images(model_kwargs) else None
            target = decoder.target
            assert isinstance(target, HuggingFaceModel)
            if images is not None and target.state_layers:
                raise ValueError(
                    "Generate: a prompt has images, and the drafter reads the target's states, "
                    "also of the prompt; needs a drafter that reads tokens"
                )
            try:
                target.waiting = images
                self.statistics = decoder.generate(
                    prompts,
                    max_new_tokens=batch.limit,
                    temperature=sampling.temperature,
                    top_k=sampling.top_k,
                    min_p=sampling.min_p,
                    seeds=self.seed if config.do_sample or self.seed is not None else 0,
                    on_tokens=batch.on_tokens,
                    process=batch.process if sampling.processors or batch.record else None,
                    stop=batch.stop,
                ).statistics
            finally:
                target.waiting = None
                for part in (target, decoder.proposer):
                    part.reset(0)  # frees the memory of its cache
            batch.count_out(self.statistics)
            if self.streamer is not None:
                self.streamer.end()
            if not config.return_dict_in_generate:
                return batch.sequences
            columns = {name: batch.recorded(name) for name, wanted in returned.items() if wanted}
            return GenerateDecoderOnlyOutput(sequences=batch.sequences, **columns)

    @property
    def _drafting_model(self) -> CausalModel | Proposer:
        """Find what drafts: also in a proposer or a `TextDrafter`, if there is a model in it."""
        own: CausalModel | Proposer = getattr(self.drafter, "drafter", self.drafter)
        return own

    def _decoder(self, model: Any, draft_temperature: float | None) -> PaddedDecoder:
        """A decoder for this target, which is checked only when it is a new or a changed one."""
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        weights = [w for end in ends if isinstance(w := getattr(end, "weight", None), Tensor)]
        now = [model, *((weight.device, weight.dtype, weight.shape) for weight in weights)]
        target = self._target
        if target is None or now != self._target_of:
            layers = getattr(self._drafting_model, "state_layers", ())
            target = self._target = HuggingFaceModel(model, state_layers=layers)
            self._target_of = now
        if getattr(getattr(self._drafting_model, "model", None), "training", False):
            raise ValueError("Generate: the drafter is in training mode; call eval() on it first")
        options: dict[str, Any] = {"method": self.method, "vocabulary": self.vocabulary}
        options |= {"dynamic_tokens": self.dynamic_tokens, "length": self.length}
        if isinstance(self.drafter, Proposer):
            return PaddedDecoder(target, None, self.affinity, proposer=self.drafter, **options)
        sizes = self.drafter.vocabulary_size, target.vocabulary_size
        if target.device != self.drafter.device:
            raise ValueError(
                f"Generate: the drafter is on {self.drafter.device}, the model on "
                f"{target.device}; needs one device"
            )
        if self.draft_temperature is not None:
            draft_temperature = self.draft_temperature
        options |= {"draft_length": self.draft_length, "draft_temperature": draft_temperature}
        return PaddedDecoder(target, self.drafter, self.affinity or shared_ids(*sizes), **options)


@cache
def shared_ids(draft_size: int, target_size: int) -> Affinity | None:
    """Between heads of one family that are padded to other widths; None where they are not."""
    smaller, larger = sorted((draft_size, target_size))
    if not 0 < larger - smaller <= larger // 100:
        return None
    ids = torch.arange(draft_size, device="cpu")
    return Affinity.intersection(Vocabulary(ids.masked_fill(ids >= target_size, -1), target_size))


class _Turn:
    """Say whose call it is. A copy of what is taken in turns has turns of its own."""

    def __init__(self) -> None:
        self.lock, self.thread = threading.Lock(), 0

    def __reduce__(self) -> tuple[type[_Turn], tuple[()]]:
        return _Turn, ()


def _drafting(part: Any) -> dict[int, Any]:
    """Find what has caches or a memory in a drafter or a proposer, down to the models inside."""
    inside = (getattr(part, name, None) for name in ("drafter", "inner"))
    below = [each for each in inside if each is not None and each is not part]
    return {id(part): part} | {key: own for each in below for key, own in _drafting(each).items()}


@contextmanager
def _one_at_a_time(drafter: CausalModel | Proposer) -> Iterator[None]:
    """Wait until no other thread decodes with a part of what drafts, in one order for all."""
    with ExitStack() as turns:
        for _, part in sorted(_drafting(drafter).items()):
            turn = getattr(part, "__dict__", {}).setdefault("_turn_of_generate", _Turn())
            if turn.thread == threading.get_ident():
                raise RuntimeError(
                    "Generate: called by a streamer, a criterion or a processor of its own call, "
                    "whose caches it would overwrite; needs another Generate with a drafter of its "
                    "own, or to be called when generate has returned"
                )
            turns.enter_context(turn.lock)
            turn.thread = threading.get_ident()
            turns.callback(setattr, turn, "thread", 0)
        yield
