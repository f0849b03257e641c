"""Models that also read images write the library's tokens, behind images and text alone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel, image_prompts  # noqa: E402
from rdk_cuda.integrations.huggingface.generation_options import prompts_of, refuse_unsupported  # noqa: E402
from rdk_cuda.integrations.huggingface.image_prompts import ImagePrompts  # noqa: E402
from tests.recurrent_models import DELTA, EXPERTS, PLACES, SHARED, SIZE, SMALL, Spoilt, recurrent  # noqa: E402

TEXT = SMALL | {"num_hidden_layers": 2, "head_dim": 8}
IMAGES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
IMAGES |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 2}
BLOCKS = {"depth": 1, "hidden_size": 16, "embed_dim": 16, "intermediate_size": 16, "num_heads": 2}
BLOCKS |= {"in_channels": 3, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
HYBRID = DELTA | {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
MIXED = ["sliding_attention", "full_attention"]
IDS = {"image_token_id": 50, "video_token_id": 51, "vision_start_token_id": 52}
IDS |= {"vision_end_token_id": 53}
TYPES: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "text_config": TEXT | HYBRID | {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
        "vision_config": BLOCKS | {"out_hidden_size": 32, "num_position_embeddings": 64},
        **IDS,
    },
    "gemma4": {  # whose last layers have the keys of others
        "text_config": TEXT
        | {"num_hidden_layers": 4, "layer_types": MIXED * 2, "num_kv_shared_layers": 2}
        | {"global_head_dim": 16, "sliding_window": 6, "hidden_size_per_layer_input": 8}
        | {"vocab_size_per_layer_input": SIZE},
        "vision_config": IMAGES | {"num_key_value_heads": 2, "head_dim": 8, "patch_size": 4},
        "audio_config": None,
        "image_token_id": 50,
        "video_token_id": 51,
        **{f"{name}_token_id": 52 + n for n, name in enumerate(("boi", "eoi", "audio", "boa"))},
        "eoa_token_id": 56,
    },
    "qwen2_vl": {
        "text_config": TEXT | {"rope_parameters": ROPE},
        "vision_config": BLOCKS | {"hidden_size": 32},
        **IDS,
    },
    "qwen2_5_vl": {
        "text_config": TEXT | {"rope_parameters": ROPE},
        "vision_config": BLOCKS
        | {"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [0]},
        **IDS,
    },
    "qwen3_vl": {
        "text_config": TEXT | {"rope_parameters": ROPE},
        "vision_config": BLOCKS
        | {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
        **IDS,
    },
    "gemma3": {
        "text_config": TEXT | {"sliding_window": 6, "layer_types": MIXED},
        "vision_config": IMAGES,
        "mm_tokens_per_image": 4,
        "image_token_index": 50,
        "boi_token_index": 52,
        "eoi_token_index": 53,
    },
    "llava": {
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": IMAGES | {"model_type": "clip_vision_model", "projection_dim": 16},
        "image_token_index": 50,
    },
    "mistral3": {
        "text_config": TEXT | {"model_type": "mistral", "sliding_window": None},
        "vision_config": IMAGES | {"model_type": "pixtral", "head_dim": 8},
        "image_token_index": 50,
        "spatial_merge_size": 2,
    },
}
TYPES["qwen3_5_moe"] = TYPES["qwen3_5"] | {"text_config": TYPES["qwen3_5"]["text_config"] | SHARED}
TYPES["qwen3_vl_moe"] = TYPES["qwen3_vl"] | {
    "text_config": TYPES["qwen3_vl"]["text_config"] | EXPERTS
}
TYPES["glm4v"] = TYPES["qwen2_5_vl"] | {
    "vision_config": BLOCKS | {"out_hidden_size": 32, "image_size": 8}
}
TYPES["internvl"] = {
    "text_config": TEXT | {"model_type": "qwen2"},
    "vision_config": IMAGES | {"image_size": [8, 8], "patch_size": [2, 2]},
    "image_token_id": 50,
}
FEW = ("qwen3_5", "gemma4")
IDS_GIVEN = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 7, 6, 5]])
MASK = (IDS_GIVEN > 0).long()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.ci) for name in TYPES]
)
def test_text_alone_is_continued_as_by_the_library(name: str) -> None:
    model = recurrent(name, **TYPES[name])
    drafter = HuggingFaceModel(recurrent(name, **TYPES[name]))
    options: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": 12, "do_sample": False}
    generate = Generate(drafter, draft_length=3)
    found = model.generate(IDS_GIVEN, pad_token_id=0, custom_generate=generate, **options)
    assert torch.equal(found, model.generate(IDS_GIVEN, pad_token_id=0, **options))
    assert generate.statistics.mean_accepted_length > 1.5


def with_images(name: str) -> dict[str, Any]:
    """Two prompts of several lengths, with an image of another size each where that may be."""
    random = torch.Generator().manual_seed(1)
    ids, words, heights = [], (5, 9), (2, 4)  # of merged patches, two wide
    by_size = name.startswith(("qwen", "glm"))
    for count, height in zip(words, heights, strict=True):
        tokens = 2 * height if by_size else 16 if name == "llava" else 4
        text = torch.randint(2, 48, (count,), generator=random).tolist()
        ids.append([3, 52, *[50] * tokens, 53, *text])
    width = max(map(len, ids))
    given = {"input_ids": torch.tensor([[0] * (width - len(own)) + own for own in ids])}
    given["attention_mask"] = (given["input_ids"] > 0).long()
    types = {"mm_token_type_ids": (given["input_ids"] == 50).long()}
    if name.startswith(("qwen", "glm", "gemma4")):
        takes = inspect.signature(recurrent(name, **TYPES[name]).forward).parameters
        types = types if "mm_token_type_ids" in takes else {}  # 5.0 counts placeholders itself
    if by_size:
        grid = torch.tensor([[1, 4, 2 * height] for height in heights])
        pixels = torch.randn(int(grid.prod(1).sum()), 96, generator=random)
        return given | types | {"pixel_values": pixels, "image_grid_thw": grid}
    if name == "gemma4":
        places = torch.cartesian_prod(torch.arange(6), torch.arange(6)).repeat(2, 1, 1)
        pixels = torch.rand(2, 36, 48, generator=random)
        return given | types | {"pixel_values": pixels, "image_position_ids": places}
    given["pixel_values"] = torch.randn(2, 3, 8, 8, generator=random)
    if name == "gemma3":
        given["token_type_ids"] = types["mm_token_type_ids"]
    if name == "mistral3":
        given["image_sizes"] = torch.tensor([[8, 8]] * 2)
    return given


OPTIONS: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}


def continued(name: str, expected: torch.Tensor, **options: Any) -> Any:
    """By `Generate`, with drafts that are right up to a random place; what it returns."""
    given = with_images(name)
    new = expected.shape[1] - given["attention_mask"].shape[1]
    real = torch.cat([given["attention_mask"], torch.ones(2, new)], 1) > 0
    texts = [row[own].tolist() for row, own in zip(expected, real, strict=True)]
    generate = Generate(Spoilt(texts))
    model = recurrent(name, **TYPES[name])
    found = model.generate(**given, **OPTIONS, **options, custom_generate=generate)
    assert generate.statistics is not None
    return found, generate.statistics


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("qwen3_5", "gemma3") else pytest.mark.ci)
        for name in sorted(image_prompts.TYPES)
    ],
)
def test_prompts_with_images_are_continued_as_by_the_library(name: str) -> None:
    """Tokens, and logits, as some types write few tokens; 0 to all drafts are accepted."""
    options = {"output_logits": True, "return_dict_in_generate": True}
    model = recurrent(name, **TYPES[name])
    if name == "glm4v" and transformers.__version__.startswith("5.0."):
        with pytest.raises(TypeError, match="does not say where tokens behind images stand"):
            continued(name, with_images(name)["input_ids"])
        return
    expected = model.generate(**with_images(name), **OPTIONS, **options)
    found, statistics = continued(name, expected.sequences, **options)
    assert torch.equal(found.sequences, expected.sequences)
    for ours, plain in zip(found.logits, expected.logits, strict=True):
        assert float((ours - plain).norm() / plain.norm()) < 1e-4
    assert statistics.accepted[0] < statistics.drafted[0]
    assert statistics.accepted[PLACES - 1] > 0


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3"])
def test_one_prompt_with_an_image_has_no_mask(name: str) -> None:
    """The library hands over None where no prompt is padded."""
    given = with_images(name)
    patches = given["image_grid_thw"][0].prod() if "image_grid_thw" in given else None
    pixels = given.pop("pixel_values")[: 1 if patches is None else patches]
    one = {kind: own[:1] for kind, own in given.items()}
    real = one["attention_mask"][0] > 0
    one |= {kind: own[:, real] for kind, own in one.items() if own.shape[1:] == real.shape}
    one |= {"pixel_values": pixels}
    model, drafter = (recurrent(name, **TYPES[name]) for _ in range(2))
    expected = model.generate(**one, **OPTIONS)
    found = model.generate(**one, **OPTIONS, custom_generate=Generate(drafter))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5"])
def test_control_positions_by_tokens_alone_are_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = recurrent(name, **TYPES[name]).generate(**with_images(name), **OPTIONS)
    read = ImagePrompts.read
    monkeypatch.setattr(ImagePrompts, "read", lambda *given: 0 * read(*given))
    assert not torch.equal(continued(name, expected)[0], expected)


def test_a_drafter_of_tokens_reads_placeholders() -> None:
    model = recurrent("qwen3_5", **TYPES["qwen3_5"])
    given, generate = with_images("qwen3_5"), Generate(recurrent("qwen3_5", **TYPES["qwen3_5"]))
    expected = model.generate(**given, **OPTIONS)
    for _ in range(2):  # text alone in between leaves nothing behind
        assert torch.equal(model.generate(**given, **OPTIONS, custom_generate=generate), expected)
        text: dict[str, Any] = {"attention_mask": MASK, **OPTIONS}
        found = model.generate(IDS_GIVEN, **text, custom_generate=generate)
        assert torch.equal(found, model.generate(IDS_GIVEN, **text))


def test_images_that_cannot_be_read_are_refused() -> None:
    """Models that are not listed, videos, images last, and drafters that read prompts' states."""
    model, given = recurrent("qwen3_5", **TYPES["qwen3_5"]), with_images("qwen3_5")
    generate = Generate(recurrent("qwen3_5", **TYPES["qwen3_5"]))
    last = {name: given[name].clone() for name in ("input_ids", "mm_token_type_ids")}
    last["input_ids"][:, -1], last["mm_token_type_ids"][:, -1] = 50, 1
    refused = {"mm_encoder_outputs": {"video": torch.ones(1)}}
    config = transformers.GenerationConfig(max_new_tokens=3)
    with pytest.raises(ValueError, match="mm_encoder_outputs was given for the model's forward"):
        refuse_unsupported(model, config, [], refused)
    prompts = ImagePrompts(last.pop("input_ids"), given | last)
    with pytest.raises(ValueError, match="a prompt ends with an image"):
        prompts.read(model, "cache", None)
    other = TYPES["llava"] | {"text_config": TEXT | {"model_type": "llama4_text"}}
    passes = {**with_images("llava"), **OPTIONS, "custom_generate": Generate(Spoilt([]))}
    with pytest.raises(TypeError, match=r"has layers of type .*; needs prompts without images"):
        recurrent("llava", **other).generate(**passes)
    target = HuggingFaceModel(model, state_layers=(1,))
    generate._decoder(model, None)
    generate._target = target
    with pytest.raises(ValueError, match="a prompt has images, and the drafter reads the target's"):
        model.generate(**given, **OPTIONS, custom_generate=generate)
    target = HuggingFaceModel(model)
    places = (given["attention_mask"].cumsum(1) - 1).clamp(min=0).repeat(4, 1, 1)
    target.waiting = ImagePrompts(given.pop("input_ids"), given | {"position_ids": places})
    target.reset(2)
    target.feed([[5], [6]], [1, 1])
    target.rollback([0, target.lengths[1] - 1])
    with pytest.raises(ValueError, match="prompts with images cannot be read again"):
        target.rollback([0, 3])


def test_images_and_their_positions_are_refused() -> None:
    model = recurrent("llama")
    config = transformers.GenerationConfig(max_new_tokens=3)
    none: dict[str, Any] = {"mm_encoder_outputs": {}, "mm_token_type_ids": torch.zeros(2, 5)}
    refuse_unsupported(model, config, [], none)
    for name, value in (
        ("mm_encoder_outputs", {"image": torch.ones(1)}),
        ("mm_encoder_outputs", torch.zeros(2)),
        ("mm_token_type_ids", torch.ones(2, 5)),
    ):
        with pytest.raises(ValueError, match=f"{name} was given for the model's forward"):
            refuse_unsupported(model, config, [], none | {name: value})
    positions = (MASK.cumsum(1) - 1).clamp(min=0).repeat(4, 1, 1)
    arguments = {"attention_mask": MASK, "position_ids": positions}
    assert prompts_of(IDS_GIVEN, arguments) == [[5, 6, 7], [9, 8, 7, 6, 5]]
    positions[2, 1, 3:] -= 1  # where an image would be
    for others in (positions, positions[:3, [0, 1, 0, 1, 0]], positions[0, 0]):
        with pytest.raises(ValueError, match="position_ids do not count the tokens"):
            prompts_of(IDS_GIVEN, arguments | {"position_ids": others})
