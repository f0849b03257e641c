"""Two tiny Llama models with random weights and one byte-level tokenizer, as files."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("rich")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rdk_cuda.commands.models import Models, load_models
from rdk_cuda.demo.corpus import calibration_files, held_out_files, read_text

VOCABULARY = 400
SHORT = (
    *("--tokens", "8", "--positions", "400", "--virtual", "8", "--dynamic", "16"),
    *("--threads", "1"),
)


@pytest.fixture(autouse=True)
def _little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting successors in all of the standard library takes seconds each time."""
    monkeypatch.setattr("rdk_cuda.demo.calibration.training_files", lambda: calibration_files()[:4])


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """Every test here runs tiny models."""


def save_model(directory: Path, *, hidden: int, seed: int, vocabulary: int = VOCABULARY) -> None:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=0.5,  # distributions far from flat, so that greedy choices are clear
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


def save_tokenizer(directory: Path, vocabulary: int = VOCABULARY) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([read_text(path) for path in held_out_files()[:3]], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(
        directory
    )


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    save_model(root / "target", hidden=16, seed=1)
    save_tokenizer(root / "target")
    save_model(root / "drafter", hidden=8, seed=2)
    return root / "target", root / "drafter"


@pytest.fixture(scope="session")
def tiny(directories: tuple[Path, Path]) -> Models:
    return load_models(*directories)
