"""Models that also read images write the library's tokens where they are given text alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel  # noqa: E402
from rdk_cuda.integrations.huggingface.generation_options import (  # noqa: E402
    prompts_of,
    refuse_unsupported,
)
from tests.recurrent_models import DELTA, SIZE, SMALL, recurrent  # noqa: E402

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
    assert generate.statistics is not None
    assert generate.statistics.mean_accepted_length > 1.5


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
