"""Bad input ends the demo with one line that says what is wrong, and exit code 2."""

import json
import shutil
from pathlib import Path

import pytest

from examples.demo.__main__ import main
from rdk_cuda.cli import arguments
from tests.tiny_models import VOCABULARY, save_model, save_tokenizer


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """What `python -m examples.demo` answers."""
    code: object
    try:
        code = main([*map(str, argv)])
    except SystemExit as exit:  # argparse's own refusals
        code = exit.code
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert code == 2, captured
    assert len(lines) == 1, lines
    assert lines[0].startswith("python -m examples.demo")
    return lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "0"], "--keep: got '0'; needs a share above 0 and at most 1"),
        (["--keep", "1.5"], "--keep: got '1.5'; needs"),
        (["--keep", "nan"], "--keep: got 'nan'; needs"),
        (["--keep", "half"], "--keep: got 'half'; needs"),
        (["--temperature", "0"], "greedy decoding is measured in any case"),
        (["--temperature", "inf"], "--temperature: got 'inf'; needs"),
        (["--draft-length", "0"], "--draft-length: got '0'; needs a whole number, at least 1"),
        (["--dynamic", "0"], "--dynamic: got '0'; needs a whole number, at least 1"),
        (["--window", "-3"], "--window: got '-3'; needs a whole number, at least 1"),
        (["--tokens", "2.5"], "--tokens: got '2.5'; needs a whole number"),
        (["--seed", "-1"], "--seed: got '-1'; needs a whole number from 0"),
        (["--prompt", " \n"], "--prompt is empty"),
        (["--target", "somewhere"], "--target and --drafter belong together"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_options_out_of_range_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], message: str
) -> None:
    assert message in refusal(capsys, "--output", tmp_path, *options)


def test_output_that_is_a_file_is_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert "is a file; needs a directory" in refusal(capsys, "--output", file)
    assert "is a file; needs a directory" in refusal(capsys, "--output", file / "below")
    assert file.read_text() == "mine"


def test_a_missing_extra_is_answered_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda name: None if name == "rich" else name)
    answer = refusal(capsys, "--output", tmp_path)
    assert "needs rich: in the source folder, pip install --no-build-isolation '.[demo]'" in answer


def models_refusal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: Path, drafter: Path
) -> str:
    models = ("--target", target, "--drafter", drafter)
    return refusal(capsys, "--output", tmp_path / "output", *models)


def test_a_missing_directory_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    missing = tmp_path / "missing"
    for models in ((missing, pair[1]), (pair[0], missing)):
        answer = models_refusal(capsys, tmp_path, *models)
        assert f"{missing}: no such directory" in answer


def test_a_directory_without_a_model_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    (pair[1] / "config.json").unlink()
    assert f"--drafter {pair[1]}: no config.json" in models_refusal(capsys, tmp_path, *pair)


def test_a_target_without_a_tokenizer_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    for file in pair[0].glob("tokenizer*"):
        file.unlink()
    answer = models_refusal(capsys, tmp_path, *pair)
    assert f"--target {pair[0]}: holds no tokenizer" in answer


def test_truncated_and_missing_weights_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    weights = pair[1] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert f"--drafter {pair[1]}: " in models_refusal(capsys, tmp_path, *pair)
    weights.unlink()
    assert f"--drafter {pair[1]}: " in models_refusal(capsys, tmp_path, *pair)


def test_weights_of_another_architecture_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    config = json.loads((pair[1] / "config.json").read_text())
    config["num_hidden_layers"] = 3  # two more than the file has
    (pair[1] / "config.json").write_text(json.dumps(config))
    assert "lack" in models_refusal(capsys, tmp_path, *pair)


def test_pickled_weights_are_never_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    (pair[1] / "model.safetensors").rename(pair[1] / "pytorch_model.bin")
    assert "safetensors" in models_refusal(capsys, tmp_path, *pair)


def test_vocabularies_of_different_sizes_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    save_model(pair[1], hidden=8, seed=2, vocabulary=VOCABULARY + 8)
    answer = models_refusal(capsys, tmp_path, *pair)
    assert f"predicts {VOCABULARY} tokens and the drafter {VOCABULARY + 8}" in answer


def test_different_tokenizers_of_one_size_are_refused_by_a_token(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    shutil.copy(pair[0] / "tokenizer_config.json", pair[1])
    content = json.loads((pair[0] / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second = "a", "b"
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (pair[1] / "tokenizer.json").write_text(json.dumps(content))
    assert "the tokenizers differ in 2 tokens: 'a'" in models_refusal(capsys, tmp_path, *pair)


def test_a_tokenizer_larger_than_the_model_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    save_tokenizer(pair[0], VOCABULARY + 50)
    assert f"tokenizer has {VOCABULARY + 50} tokens" in models_refusal(capsys, tmp_path, *pair)


def test_a_prompt_beyond_the_context_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    models = ("--target", pair[0], "--drafter", pair[1])
    answer = refusal(capsys, "--output", tmp_path / "o", *models, "--prompt", "many words " * 300)
    assert "exceed the models' context of 512" in answer


def test_shipped_models_that_are_missing_are_answered_with_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.demo.shipped.SHIPPED", tmp_path / "none")
    answer = refusal(capsys, "--output", tmp_path)
    assert "--train" in answer
    assert "--target DIR --drafter DIR" in answer
