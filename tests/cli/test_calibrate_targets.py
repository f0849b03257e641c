"""`calibrate` and `evaluate` read targets of every kind, and heads that are padded to other widths.

They only read them forward, so scaled and capped logits are fine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rdk_cuda.__main__ import main
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.loading import load_pair

from ..architectures import tiny
from ..recurrent_models import recurrent
from ..tiny_models import VOCABULARY, save_model, save_pair, save_tokenizer
from .calibrating import command, write_texts
from .conftest import Desk

CAPPED = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
CAPPED |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8}
TARGETS: dict[str, Callable[[], Any]] = {
    "a delta rule": lambda: recurrent("qwen3_5_text", vocab_size=VOCABULARY, eos_token_id=0),
    "Mamba": lambda: recurrent("mamba", vocab_size=VOCABULARY, eos_token_id=0),
    "convolutions": lambda: recurrent("lfm3", vocab_size=VOCABULARY, eos_token_id=0),
    "scaled logits": lambda: tiny("cohere", vocab_size=VOCABULARY, eos_token_id=0),
    "capped logits": lambda: tiny(
        "Gemma2Config", attention="eager", vocab_size=VOCABULARY, eos_token_id=0, **CAPPED
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.ci] * (name != "a delta rule")) for name in TARGETS],
)
def test_targets_are_calibrated_for_and_evaluated(desk: Desk, name: str) -> None:
    target = desk.folder / "other"
    TARGETS[name]().save_pretrained(target)
    save_tokenizer(target)
    assert main(command((target, desk.pair[1]), desk.texts, desk.out)) == 0
    assert len(desk.evaluate(desk.out, "--positions", 100, target=target)["rows"]) > 1


@pytest.mark.parametrize(
    "size", [VOCABULARY - 3, pytest.param(VOCABULARY + 3, marks=pytest.mark.ci)]
)
def test_drafters_of_the_family_get_the_targets_width(size: int, tmp_path: Path) -> None:
    """What only one of both has is never drafted, and neither is saved."""
    target, _ = save_pair(tmp_path)
    drafter = tmp_path / "padded"
    save_model(drafter, hidden=8, seed=2, vocabulary=size)
    save_tokenizer(target, VOCABULARY - 3)
    pair = load_pair(target, drafter)
    weight, bias = pair.drafter_head
    assert len(weight) == VOCABULARY
    assert bias is None if size > VOCABULARY else bias[:size].eq(0).all() and bias[size] < -1e4
    assert main(command((target, drafter), write_texts(tmp_path / "text"), tmp_path / "saved")) == 0


def test_tokenizers_may_have_special_tokens_that_no_model_predicts(tmp_path: Path) -> None:
    """As Gemma 3's of 1B. Ordinary ones it may not: they would come in any text."""
    target, drafter = save_pair(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(target)
    assert main(command((target, drafter), write_texts(tmp_path / "text"), tmp_path / "saved")) == 0
    tokenizer.add_tokens(["ordinary"])
    tokenizer.save_pretrained(target)
    with pytest.raises(InputError, match=f"has {VOCABULARY + 2} tokens, its model predicts"):
        load_pair(target, drafter)
