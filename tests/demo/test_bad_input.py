"""Bad input ends the demo with one line that says what is wrong, and exit code 2."""

from pathlib import Path

import pytest

from examples.demo.__main__ import main
from rdk_cuda.cli import arguments
from tests.cli import calibrating


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """What `python -m examples.demo` answers."""
    return calibrating.refusal(capsys, [*map(str, argv)], main, "examples.demo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "0"], "--keep: got '0'; needs a share above 0 and at most 1"),
        (["--temperature", "0"], "greedy decoding is measured in any case"),
        (["--draft-length", "0"], "--draft-length: got '0'; needs a whole number, at least 1"),
        (["--tokens", "2.5"], "--tokens: got '2.5'; needs a whole number"),
        (["--seed", "-1"], "--seed: got '-1'; needs a whole number from 0"),
        (["--prompt", " \n"], "--prompt is empty"),
        (["--target", "somewhere"], "--target and --drafter belong together"),
        (
            ["--model", "gemma3-270m", "--target", "here", "--drafter", "there"],
            "leave --target, --drafter and --train out",
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_options_out_of_range_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], message: str
) -> None:
    assert message in refusal(capsys, "--output", tmp_path, *options)


def test_what_is_missing_is_named_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for the output, the demo's own models, a package of the extra."""
    file = tmp_path / "file"
    file.write_text("mine")
    for output in (file, file / "below"):
        assert "is a file; needs a directory" in refusal(capsys, "--output", output)
    assert file.read_text() == "mine"
    monkeypatch.setattr("examples.demo.shipped.SHIPPED", tmp_path / "none")
    answer = refusal(capsys, "--output", tmp_path)
    assert "--train" in answer
    assert "--target DIR --drafter DIR" in answer
    monkeypatch.setattr(arguments, "find_spec", lambda name: None if name == "rich" else name)
    answer = refusal(capsys, "--output", tmp_path)
    assert "needs rich: in the source folder, pip install --no-build-isolation '.[demo]'" in answer


def test_a_prompt_beyond_the_context_and_a_model_that_is_none_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    models = ("--output", tmp_path / "o", "--target", pair[0], "--drafter", pair[1])
    answer = refusal(capsys, *models, "--prompt", "many words " * 300)
    assert "exceed the models' context of 512" in answer
    (pair[1] / "config.json").unlink()
    assert f"--drafter {pair[1]}: no config.json" in refusal(capsys, *models)
