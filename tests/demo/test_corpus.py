"""The demo's text and the models shipped with it keep their promises."""

import sysconfig
from pathlib import Path

import pytest

from examples.demo import corpus
from examples.demo.text import held_out_prompts
from rdk_cuda.recipes.inputs.pairs import ModelPair

MODELS = Path(corpus.__file__).parent / "models"
SHIPPED = [
    *(f"target/{name}" for name in ("config.json", "generation_config.json", "model.safetensors")),
    *(f"target/{name}" for name in ("tokenizer.json", "tokenizer_config.json")),
    *(f"drafter/{name}" for name in ("config.json", "generation_config.json", "model.safetensors")),
    *(f"eagle3/{name}" for name in ("config.json", "model.safetensors")),
    *(f"gemma-eagle3/{name}" for name in ("GEMMA_TERMS.txt", "NOTICE", "config.json")),
    "gemma-eagle3/model.safetensors",
]

shipped_models = pytest.mark.skipif(
    not all((MODELS / name).is_file() for name in SHIPPED),
    reason="the demo's models are not there yet: python -m examples.demo --train makes them",
)


def test_held_out_files_exist_and_are_never_trained_or_calibrated_on() -> None:
    held_out = corpus.held_out_files()
    assert len(held_out) == len(corpus.HELD_OUT) == len(set(held_out))
    assert all(path.is_file() for path in held_out)
    assert set(held_out).isdisjoint(corpus.training_files())
    assert set(corpus.calibration_files()) < set(corpus.training_files())
    assert all(path.read_text(errors="replace").strip() for path in corpus.calibration_files(1))


def test_a_python_without_library_source_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="zipped or frozen"):
        corpus.training_files()


def test_prompts_are_as_long_as_asked_and_end_at_the_head_of_a_function(tiny: ModelPair) -> None:
    prompts = held_out_prompts(tiny.tokenizer, length=40)
    assert {len(prompt.ids) for prompt in prompts} == {40}
    assert {prompt.source for prompt in prompts} == {path.name for path in corpus.held_out_files()}
    ends = [tiny.tokenizer.decode(prompt.ids).splitlines()[-1] for prompt in prompts]
    heads = [end for end in ends if end.lstrip().startswith("def ") and end.endswith(":")]
    assert len(heads) > len(ends) // 2


@shipped_models
def test_shipped_files_are_few_and_small() -> None:
    files = [path for path in MODELS.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(MODELS).as_posix() for path in files) == sorted(SHIPPED)
    heads = {path for path in files if path.parent.name == "gemma-eagle3"}
    assert sum(path.stat().st_size for path in heads) <= 17_000_000
    assert sum(path.stat().st_size for path in files if path not in heads) <= 17_000_000


@shipped_models
def test_shipped_tokenizer_has_the_whole_vocabulary() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 16384
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    text = "def naïve(x):\n\treturn x  # ±1\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
