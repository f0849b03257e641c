"""Models as people have them: wrapped, padded, and with options in their files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", minversion="5.0")

from rdk_cuda.decoding import TextDrafter  # noqa: E402
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel  # noqa: E402
from tests.architectures import near, tiny  # noqa: E402
from tests.trained_tokenizers import byte_level  # noqa: E402

SIZE = 300
IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def model() -> Any:
    return tiny(vocab_size=SIZE)


class Adapted(torch.nn.Module):
    """As PEFT's models are: they take any arguments, and have the library's model inside."""

    def __init__(self, inside: Any, *, prompts: bool = False) -> None:
        super().__init__()
        self.inside, self.config = inside, inside.config
        self.active_peft_config = SimpleNamespace(is_prompt_learning=prompts)

    def get_base_model(self) -> Any:
        return self.inside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inside(*args, **kwargs)


def resized(size: int, of: Any = None) -> Any:
    other = copy.deepcopy(of or model())
    other.resize_token_embeddings(size, mean_resizing=False)
    return other.eval()


def with_options(**options: Any) -> Any:
    other = model()
    for name, value in options.items():
        setattr(other.generation_config, name, value)
    return other


PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "compiled": lambda: (model(), torch.compile(near(model(), 0.03))),
    "with adapters": lambda: (model(), Adapted(near(model(), 0.03))),
    "a wider target": lambda: (resized(SIZE + 3), near(model(), 0.03)),
    "a wider drafter": lambda: (model(), resized(SIZE + 3, near(model(), 0.03))),
    "hidden states in its file": lambda: (
        with_options(output_hidden_states=True),
        near(model(), 0.03),
    ),
    "no cache in its file": lambda: (with_options(use_cache=False), near(model(), 0.03)),
}


def decoded(target: Any, drafter: Any, ids: Tensor = IDS) -> Tensor:
    generate = Generate(drafter, draft_length=3)
    new: Tensor = target.generate(ids, custom_generate=generate, **OPTIONS)
    assert sum(generate.statistics.accepted) > 0
    return new


@pytest.mark.parametrize("name", PAIRS)
def test_models_as_they_are_found_write_the_same(name: str) -> None:
    target, drafter = PAIRS[name]()
    assert torch.equal(decoded(target, drafter), target.generate(IDS, **OPTIONS))


def test_ids_of_32_bits_give_64() -> None:
    target = model()
    found = decoded(target, near(target, 0.03), IDS.int())
    assert found.dtype == torch.int64
    assert torch.equal(found, target.generate(IDS.int(), **OPTIONS))


def test_mllama_reads_text_alone() -> None:
    """Its layers of cross attention have nothing to see."""
    text = {"vocab_size": SIZE, "hidden_size": 32, "intermediate_size": 48, "pad_token_id": 0}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text["cross_attention_layers"] = [1]
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_global_layers": 1, "attention_heads": 2, "image_size": 8, "patch_size": 4}
    vision |= {"vision_output_dim": 32, "intermediate_layers_indices": [0]}
    config = transformers.AutoConfig.for_model("mllama", text_config=text, vision_config=vision)
    torch.manual_seed(0)
    kind = transformers.AutoModelForImageTextToText
    target = kind.from_config(config, attn_implementation="eager").eval()
    target.generation_config.eos_token_id = None
    assert torch.equal(decoded(target, copy.deepcopy(target)), target.generate(IDS, **OPTIONS))


def dynamically_quantised() -> Any:
    return torch.ao.quantization.quantize_dynamic(model(), {torch.nn.Linear}, dtype=torch.qint8)


def without_names() -> Any:
    other = model()
    other.config.return_dict = False
    return other


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization")
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (dynamically_quantised, "is quantised dynamically"),
        (without_names, "has return_dict=False in its config, with which its parts fail"),
        (lambda: Adapted(model(), prompts=True), "puts trained prompts before the tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(made: Callable[[], Any], reason: str) -> None:
    with pytest.raises(TypeError, match=f"HuggingFaceModel: .* {reason}"):
        Generate(made())


def test_a_tokenizer_may_have_special_tokens_that_its_model_does_not_predict() -> None:
    """As Gemma 3's of 1B has one for images."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level())
    size = len(tokenizer)
    target, drafter = tiny(vocab_size=size), near(tiny(vocab_size=size), 0.03)
    plain = TextDrafter(HuggingFaceModel(drafter), tokenizer, tokenizer).between(size)
    more = copy.deepcopy(tokenizer)
    more.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    assert len(more) == size + 1
    generate = Generate(drafter, tokenizer=more, drafter_tokenizer=more, draft_length=3)
    found = target.generate(IDS, custom_generate=generate, **OPTIONS)
    assert torch.equal(found, target.generate(IDS, **OPTIONS))
    assert generate.drafter.between(size).dense().equal(plain.dense())
