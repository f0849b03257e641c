"""A small head in a Hugging Face model, in place of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from rdk_cuda import Vocabulary
from rdk_cuda.drafter import prune_head

transformers = pytest.importorskip("transformers")

from rdk_cuda.integrations.huggingface.pruned_model import apply_head  # noqa: E402

SIZE = 40
KEPT = Vocabulary([3, 0, 17, 39, 21], target_size=SIZE)
IDS = torch.tensor([[5, 39, 2, 0, 21]])
CONFIGS = {
    "llama": ("LlamaConfig", {}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "num_key_value_heads": 2}),  # soft-caps its logits
    "cohere": ("CohereConfig", {"logit_scale": 0.25}),  # scales its logits
    "neox": ("GPTNeoXConfig", {}),  # calls its head embed_out
}


def tiny(name: str = "llama", *, tied: bool) -> Any:
    kind, arguments = CONFIGS[name]
    config = getattr(transformers, kind)(
        vocab_size=SIZE,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **arguments,
    )
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def small_head(model: Any, vocabulary: Vocabulary = KEPT) -> torch.Tensor:
    return prune_head(model.get_output_embeddings().weight, None, vocabulary)[0]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_the_logits_are_those_of_the_kept_tokens(name: str, tied: bool) -> None:
    model = tiny(name, tied=tied)
    expected = model(IDS).logits[..., KEPT.draft_ids]
    apply_head(model, small_head(model))
    torch.testing.assert_close(model(IDS).logits, expected)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_the_input_embedding_is_untouched_and_stays_apart(tied: bool) -> None:
    model = tiny(tied=tied)
    embedding = model.get_input_embeddings().weight
    before = embedding.clone()
    apply_head(model, small_head(model))
    model.tie_weights()  # as loading and resizing do
    assert model.get_input_embeddings().weight is embedding
    torch.testing.assert_close(embedding, before, rtol=0, atol=0)
    assert model.get_output_embeddings().weight.shape == (5, 16)
    assert model.config.tie_word_embeddings is False
    assert model.config.vocab_size == SIZE


def test_a_bias_is_applied_and_the_head_copied() -> None:
    model, bias = tiny(tied=True), torch.arange(5.0)
    weight = small_head(model).double()
    with torch.no_grad():
        plain = copy.deepcopy(model)
        apply_head(plain, weight)
        apply_head(model, weight, bias)
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits + bias)
    assert model.get_output_embeddings().weight.dtype == torch.float32
    weight.zero_()
    assert bool(model.get_output_embeddings().weight.any())


def test_a_model_with_a_small_head_decodes_as_a_drafter() -> None:
    from rdk_cuda.integrations.huggingface import HuggingFaceModel

    model = tiny(tied=True)
    given = HuggingFaceModel(copy.deepcopy(model), head=small_head(model))
    apply_head(model, small_head(model))
    applied = HuggingFaceModel(model)
    assert applied.vocabulary_size == given.vocabulary_size == 5
    for drafter in (given, applied):
        drafter.reset(1)
    tokens, keep = [IDS[0].tolist()], [2]
    torch.testing.assert_close(applied.feed(tokens, keep).logits, given.feed(tokens, keep).logits)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.zeros(5, 8), None, r"shape \[5, 8\] .* needs floating-point \[V_d, d\] with d = 16"),
        (torch.zeros(5, 16, dtype=torch.int64), None, "dtype torch.int64"),
        (torch.zeros(5, 16), torch.zeros(4), r"bias has shape \[4\]; needs \[V_d\] = \[5\]"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    weight: torch.Tensor, bias: torch.Tensor | None, message: str
) -> None:
    model = tiny(tied=True)
    with pytest.raises(ValueError, match=message):
        apply_head(model, weight, bias)
    assert model.config.tie_word_embeddings is True
    with pytest.raises(TypeError, match="LlamaModel is NoneType; needs a causal language model"):
        apply_head(model.base_model, torch.zeros(5, 16))
