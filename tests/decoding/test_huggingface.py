"""A Hugging Face model behind the protocol computes what it computes alone and from the start."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterChain, DrafterTree, SpeculativeDecoder

transformers = pytest.importorskip("transformers", minversion="5.0")
from rdk_cuda.integrations.huggingface import HuggingFaceModel, slot_cache  # noqa: E402
from rdk_cuda.integrations.huggingface import model as huggingface  # noqa: E402
from rdk_cuda.integrations.huggingface.library import CACHE_ARGUMENTS, cache_argument  # noqa: E402
from tests.architectures import CONFIGS, CONTEXT, EAGER, SIZE, SLIDING, WINDOW, tiny  # noqa: E402


@torch.no_grad()
def alone(model: Any, ids: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def assert_session_is_exact(model: Any, wrapped: HuggingFaceModel, seed: int) -> None:
    """Feed random numbers of tokens to four sequences and roll them back, for some rounds."""
    rng = random.Random(seed)
    contexts: list[list[int]] = [[] for _ in range(4)]
    wrapped.reset(4)
    for round_ in range(8):
        lengths = [rng.choice([3, 7, 20] if round_ == 0 else [0, 1, 2, 5]) for _ in contexts]
        lengths[rng.randrange(4)] += 1
        new = [[rng.randrange(SIZE) for _ in range(length)] for length in lengths]
        keep = [rng.randint(0, length) for length in lengths]
        logits = wrapped.feed(new, keep).logits
        assert logits.shape == (4, max(keep), SIZE)
        for b, context in enumerate(contexts):
            context += new[b]
            if keep[b]:
                expected = alone(model, context)[-keep[b] :]
                scale = float(expected.abs().max())
                torch.testing.assert_close(
                    logits[b, : keep[b]], expected, rtol=0, atol=1e-5 * scale
                )
        kept = [rng.randint(max(0, len(c) - 5), len(c) + 1) for c in contexts]
        wrapped.rollback(kept)
        contexts = [context[:length] for context, length in zip(contexts, kept, strict=True)]
        assert wrapped.lengths == [len(context) for context in contexts]


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, "eager") for name in CONFIGS]
    + [(name, "sdpa") for name in sorted(CONFIGS.keys() - EAGER)],
)
def test_ragged_feeding_and_rollback_equal_fresh_forwards(name: str, attention: str) -> None:
    model = tiny(name, attention=attention)
    assert_session_is_exact(model, HuggingFaceModel(model), seed=1)


def call_cache(name: str, module: Any) -> None:
    """Let its forward take its KV cache as an argument of this name, and of no other."""
    forward, own = module.forward, cache_argument(module)
    signature = inspect.signature(forward)

    def renamed(**arguments: Any) -> Any:
        assert name == own or arguments.get(own) is None
        if name in arguments:
            arguments[own] = arguments.pop(name)
        return forward(**arguments)

    renamed.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            each.replace(name=name) if each.name == own else each
            for each in signature.parameters.values()
        ]
    )
    module.forward = renamed


@pytest.mark.parametrize("name", CACHE_ARGUMENTS)
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.filterwarnings("error:.past_key_values. is deprecated:FutureWarning")
def test_a_model_may_call_its_cache_by_either_name(name: str, hidden: bool) -> None:
    """The library's own have one before 5.24 and the other from then on, other people's either."""
    model = tiny()
    call_cache(name, model.base_model if hidden else model)
    assert_session_is_exact(tiny(), HuggingFaceModel(model, return_hidden=hidden), seed=2)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_a_prompt_and_hidden_states_change_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_cache, "_PREFILL_COLUMNS", 3)
    model = tiny()
    assert_session_is_exact(model, HuggingFaceModel(model, return_hidden=seed > 0), seed)


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("pieces", [512, 3])
def test_a_rollback_moves_the_window_back_over_its_edge(
    name: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sequence goes back by more than two windows, one to within its first, one not at all."""
    monkeypatch.setattr(slot_cache, "_PREFILL_COLUMNS", pieces)
    model, rng = tiny(name), random.Random(4)
    wrapped = HuggingFaceModel(model)
    wrapped.reset(3)
    contexts = [[rng.randrange(SIZE) for _ in range(length)] for length in (40, 3 * WINDOW, 11)]
    wrapped.feed(contexts, [1, 1, 1])
    for lengths in ((3 * WINDOW - 1, WINDOW - 3, 11), (2 * WINDOW, 1, WINDOW), (1, 1, 0)):
        wrapped.rollback(lengths)
        new = [[rng.randrange(SIZE) for _ in range(length)] for length in (1, WINDOW + 2, 5)]
        logits = wrapped.feed(new, [1, WINDOW + 2, 4]).logits
        contexts = [old[:n] + more for old, n, more in zip(contexts, lengths, new, strict=True)]
        for b, keep in enumerate((1, WINDOW + 2, 4)):
            expected = alone(model, contexts[b])[-keep:]
            atol = 1e-5 * float(expected.abs().max())
            torch.testing.assert_close(logits[b, :keep], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_short_context_is_the_first_token_and_the_last_ones(name: str) -> None:
    """As the library's own forward has it with such a mask, and one position does not see it."""
    model, recent, length = tiny(name), 5, 20
    ids = [[(7 * b + 3 * place) % SIZE for place in range(length)] for b in range(2)]
    short, plain = HuggingFaceModel(model, recent=recent), HuggingFaceModel(model)
    short.reset(2)
    seen = short.feed(ids, [length, length]).logits
    short.rollback([length - 7, 3])
    again = short.feed([ids[0][-7:], ids[1][3:]], [7, 1]).logits
    torch.testing.assert_close(again[0], seen[0, -7:])
    torch.testing.assert_close(again[1, 0], seen[1, -1])
    plain.reset(2)
    everything = plain.feed(ids, [length, length]).logits
    torch.testing.assert_close(seen[:, : recent + 1], everything[:, : recent + 1])
    assert not torch.isclose(seen[:, recent + 1 :], everything[:, recent + 1 :]).all(-1).any()
    queries, keys = torch.arange(length)[:, None], torch.arange(length)
    near = (keys <= queries) & ((keys > queries - recent) | (keys == 0))
    mask = torch.zeros(1, 1, length, length).masked_fill(~near, torch.finfo(torch.float32).min)
    own = near & (keys > queries - WINDOW)
    narrow = torch.zeros_like(mask).masked_fill(~own, torch.finfo(torch.float32).min)
    both = {"full_attention": mask, "sliding_attention": narrow}
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor(ids[:1]),
            attention_mask=both if name == "gemma3" else mask,
            use_cache=False,
        ).logits[0]
    torch.testing.assert_close(seen[0], expected)


def test_a_window_that_is_read_otherwise_is_caught() -> None:
    """The library's own forward has another window than the configuration that we read."""
    model = tiny("gemma3", attention="eager")
    layers = huggingface.layers_of(model)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(huggingface, "layers_of", lambda model: layers._replace(window=WINDOW + 1))
        with pytest.raises(ValueError, match="does not follow"):
            HuggingFaceModel(model)


def test_dead_slots_are_dropped() -> None:
    """However long it goes on, the cache stays within 4/3 of the longest sequence and one step."""
    wrapped, rng = HuggingFaceModel(tiny()), random.Random(0)
    wrapped.reset(3)
    for _ in range(60):
        wrapped.feed([[5] * 5] * 3, [0, 0, 1])
        wrapped.rollback([n - rng.choice([1, 4, 5]) for n in wrapped.lengths])
        longest = max(wrapped.lengths)
        slots = wrapped._cache.alive.shape[1]
        assert 3 * slots <= 4 * longest
        assert all(layer.keys.shape[2] == slots for layer in wrapped._cache.past.layers)
        if longest > CONTEXT - 10:
            wrapped.rollback([10, 3, 0])
    assert wrapped._cache.alive.shape[1] < 60
    wrapped.reset(2)
    for keep in ([1, 0], [0, 1]):
        wrapped.feed([[5] * (1 if own else 8) for own in keep], keep)
    wrapped.rollback(wrapped.lengths)  # the gaps go also where no token does
    assert wrapped._cache.alive.shape[1] == 9


def test_sequences_of_one_length_are_laid_out_by_what_is_kept_of_them() -> None:
    ids, real = slot_cache.lay_out([[1, 2, 3], [4, 5, 6]], [1, 2])
    assert ids.tolist() == [[1, 2, 3, 0], [0, 4, 5, 6]]
    assert torch.equal(real, ids > 0)


@pytest.mark.parametrize("of", [np.array, torch.tensor, tuple])
def test_tokens_of_one_length_or_of_several_may_lie_in_arrays(of: Callable[..., Any]) -> None:
    wrapped = HuggingFaceModel(tiny())
    for tokens in ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5]]):
        fed = []
        for given in (tokens, [of(row) for row in tokens]):
            wrapped.reset(2)
            fed.append(wrapped.feed(given, [1, 1]).logits)
        assert torch.equal(*fed)


def test_models_in_float64_decode_with_dynamic_tokens_too() -> None:
    model = tiny().double()
    vocabulary = Vocabulary(torch.arange(10, 30), SIZE)
    decoder = SpeculativeDecoder(
        HuggingFaceModel(model),
        HuggingFaceModel(model, head=model.get_output_embeddings().weight.detach()[10:30]),
        Affinity.intersection(vocabulary),
        dynamic_tokens=lambda contexts: vocabulary.pruned.expand(len(contexts), -1),
    )
    result = decoder.generate([[3], [4, 5]], max_new_tokens=20, temperature=0)
    for prompt, new in zip([[3], [4, 5]], result.tokens, strict=True):
        text = prompt + new
        assert alone(model, text)[len(prompt) - 1 : -1].argmax(1).tolist() == new
    assert result.statistics.mean_accepted_length > 3


def test_a_pruned_head_replaces_the_model_s_own() -> None:
    model = tiny()
    rows, bias = torch.tensor([4, 0, 33, 60]), torch.randn(4)
    weight = model.get_output_embeddings().weight.detach()[rows]
    wrapped = HuggingFaceModel(model, head=weight, head_bias=bias, return_hidden=True)
    wrapped.reset(2)
    logits, hidden = wrapped.feed([[7, 8], [9]], [2, 1])[:2]
    assert wrapped.vocabulary_size == 4
    assert logits.shape == (2, 2, 4)
    torch.testing.assert_close(logits[0], alone(model, [7, 8])[:, rows] + bias)
    torch.testing.assert_close(logits[1, 0], alone(model, [9])[0, rows] + bias)
    full, own_bias = wrapped.full_head
    assert own_bias is None
    torch.testing.assert_close(hidden[1, 0] @ full.T, alone(model, [9])[0])


def fewer_ids(size: int = SIZE - 11) -> HuggingFaceModel:
    """The target's twin, without embeddings of its last ids."""
    model = tiny()
    model.resize_token_embeddings(size)
    return HuggingFaceModel(model)


@pytest.mark.parametrize("proposer", [DrafterChain, DrafterTree])
def test_behind_a_token_that_the_drafter_cannot_read_nothing_is_drafted(proposer: Any) -> None:
    drafter = fewer_ids()
    affinity = Affinity.intersection(Vocabulary(range(SIZE - 11), SIZE))
    decoder = SpeculativeDecoder(
        HuggingFaceModel(tiny()), proposer=proposer(drafter, affinity), method="token"
    )
    alone = SpeculativeDecoder(HuggingFaceModel(tiny()), draft_length=0)
    prompts, options = [[3], [4, SIZE - 11, 4], [7, 8]], {"max_new_tokens": 40, "temperature": 0}
    result = decoder.generate(prompts, **options)
    assert result.tokens == alone.generate(prompts, **options).tokens
    assert any(token >= SIZE - 11 for token in result.tokens[0] + result.tokens[2])
    assert result.statistics.mean_accepted_length > 0
    assert drafter.lengths[1] == 0


def test_a_drafter_that_could_draft_what_it_cannot_read_is_refused() -> None:
    drafter, readable = fewer_ids(), SIZE - 11
    own = Affinity.intersection(Vocabulary(range(readable), SIZE))
    last = Affinity.intersection(Vocabulary(range(11, SIZE), SIZE))
    needs = rf"that reads ids in \[0, {readable}\), .* lead to {SIZE} .* no dynamic_tokens"
    with pytest.raises(ValueError, match=f"DrafterChain: .* {needs}"):
        SpeculativeDecoder(HuggingFaceModel(tiny()), drafter, last)
    with pytest.raises(ValueError, match=f"DrafterChain: .* {needs}"):
        DrafterChain(drafter, own, dynamic_tokens=lambda contexts: torch.zeros(1, 1).int())


def test_other_unusable_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"training mode; call model\.eval\(\)"):
        HuggingFaceModel(tiny().train())
    with pytest.raises(TypeError, match="has no LM head"):
        HuggingFaceModel(tiny().base_model)
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(TypeError, match="flash_attention_2"):
        HuggingFaceModel(model)


def test_a_scale_between_head_and_logits_is_refused_only_where_the_head_is_replaced() -> None:
    model = tiny("cohere")
    HuggingFaceModel(model)
    with pytest.raises(ValueError, match="not just its LM head"):
        HuggingFaceModel(model, head=model.get_output_embeddings().weight[:9])


def test_a_model_that_ignores_the_mask_is_caught() -> None:
    model = tiny()
    forward = model.base_model.forward
    model.base_model.forward = lambda **kwargs: forward(**kwargs | {"attention_mask": None})
    with pytest.raises(ValueError, match="does not follow"):
        HuggingFaceModel(model)


def test_bad_arguments_are_refused_by_name() -> None:
    wrapped = HuggingFaceModel(tiny())
    with pytest.raises(ValueError, match=r"got 1 sequences of tokens and 1 of keep; needs 0"):
        wrapped.feed([[1]], [1])
    wrapped.reset(1)
    with pytest.raises(ValueError, match=r"token ids lie in \[1, 61\]; .*\[0, 61\)"):
        wrapped.feed([[1, SIZE]], [1])
    with pytest.raises(ValueError, match=r"keep\[0\] is 3 of 2 tokens"):
        wrapped.feed([[1, 2]], [3])
    with pytest.raises(ValueError, match=r"sequence 0 gets 97 tokens long; .* context is 96"):
        wrapped.feed([[1] * (CONTEXT + 1)], [1])
    with pytest.raises(ValueError, match=r"lengths is \[-1\]"):
        wrapped.rollback([-1])
    message = r"head has shape \[4, 31\] .*; needs floats \[V_d >= 1, 32\]"
    with pytest.raises(ValueError, match=message):
        HuggingFaceModel(tiny(), head=torch.zeros(4, 31))
    with pytest.raises(ValueError, match="recent is 0; needs at least 1"):
        HuggingFaceModel(tiny(), recent=0)
    with pytest.raises(ValueError, match=r"head_bias has shape \[3\]; needs \[4\]"):
        HuggingFaceModel(tiny(), head=torch.zeros(4, 32), head_bias=torch.zeros(3))


def test_dynamic_rotary_embeddings_of_one_kind_of_layer_end_there_too() -> None:
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    dynamic = plain | {"rope_type": "dynamic", "factor": 2.0}
    dynamic["original_max_position_embeddings"] = 24
    rope = {"sliding_attention": plain, "full_attention": dynamic}
    assert HuggingFaceModel(tiny("gemma3", rope_parameters=rope)).context == 24
    assert HuggingFaceModel(tiny("gemma3")).context == CONTEXT


def test_dynamic_rotary_embeddings_end_at_the_original_context() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    rope["original_max_position_embeddings"] = 16
    wrapped = HuggingFaceModel(tiny("llama", rope_parameters=rope))
    wrapped.reset(1)
    wrapped.feed([[1] * 16], [1])
    with pytest.raises(ValueError, match="context is 16"):
        wrapped.feed([[1]], [1])
