# ruff: noqa: F811  (fixtures are imported, and arguments have their names)
"""`python -m rdk_cuda.labs.steering` trains what steers a drafter, and measures it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from rdk_cuda.__main__ import main as core
from rdk_cuda.calibration import Window
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.functional import redistribute
from rdk_cuda.integrations.huggingface.saved_drafter import load_drafter, save_drafter
from rdk_cuda.labs.steering import SteeredModel, Steering, generate_from, load_steered, steered_read
from rdk_cuda.labs.steering.__main__ import main
from rdk_cuda.recipes import distill
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.vocabulary import Vocabulary

from ..cli.calibrating import Pair, digests, settings_of
from ..cli.conftest import Calibrated, _quick, calibrated, texts  # noqa: F401  (fixtures)
from ..cli.test_distill import _few_texts, command  # noqa: F401
from ..tiny_models import VOCABULARY


class Observed(distill.Distillation):
    """Notes each training, and what its parameters are at first."""

    made: list[tuple[Observed, list[torch.Tensor]]]

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.made.append((self, self._copy()))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Observed, list[torch.Tensor]]]:
    """The trainings of a test."""
    monkeypatch.setattr(Observed, "made", [], raising=False)
    monkeypatch.setattr(distill, "Distillation", Observed)
    return Observed.made


def random_steering(calibrated: Calibrated, tiny: ModelPair, folder: Path) -> Path:
    """A copy of the drafter, steered."""
    steered = Path(shutil.copytree(calibrated.saved, folder / "steered"))
    steering = Steering.between(tiny.target, load_drafter(steered)[0])
    torch.nn.init.normal_(steering.out.weight, std=0.1)
    steering.save(steered / "steering.safetensors")
    return steered


def test_steering_is_trained_beside_the_drafter_and_used_by_all_that_read_it(
    calibrated: Calibrated,
    directories: Pair,
    tiny: ModelPair,
    tmp_path: Path,
    made: list[tuple[Observed, list[torch.Tensor]]],
) -> None:
    options = ("--learning-rate", "0.3")
    line = command(directories, calibrated.saved, tmp_path, *options)
    assert main(line) == 0
    before, after = digests(calibrated.saved), digests(tmp_path / "out")
    changed = {"calibration.json", "steering.safetensors"}
    assert {name for name in after if after[name] != before.get(name)} == changed
    *_, found = load_steered(tmp_path / "out")
    assert bool(found.out.weight.any())

    first = settings_of(tmp_path / "out")["distilled"]
    again = tmp_path / "again"
    line = command(directories, tmp_path / "out", again, *options, "--seed", 1, "--prompt", 1)
    assert main(line) in (0, 1)
    start = made[1][1]
    assert [len(each) for each in start[:1]] == [0]  # no row of the head
    for value, trained in zip(start[-5:], found.parameters(), strict=True):
        assert torch.equal(value, trained)
    if (again / "out").exists():
        assert settings_of(again / "out")["distilled"][:1] == first

    generate = generate_from(tmp_path / "out", draft_length=3)
    assert isinstance(generate.drafter, SteeredModel)
    ids = torch.tensor([[5, 3, 1, 0, 2]])
    asked: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        tiny.target.generate(ids, **asked, custom_generate=generate),
        tiny.target.generate(ids, **asked),
    )
    rates = []
    for saved in (calibrated.saved, tmp_path / "out"):
        content = measured(saved, directories[0], calibrated.held_out, tmp_path)
        rates.append([row["acceptance"] for row in content["rows"]])
    assert rates[0] != rates[1]


def test_untrained_steering_is_the_drafter_to_the_bit(
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    made: list[tuple[Observed, list[torch.Tensor]]],
) -> None:
    """On the same texts; steered at random is the control."""
    for train in ("head", "steering"):
        options = ("--train", train, "--steps", "1", "--learning-rate", "1e-9")
        assert main(command(directories, calibrated.saved, tmp_path / train, *options)) in (0, 1)
    plain, untrained = (training for training, _ in made)
    assert torch.equal(untrained.acceptance(plain.choosing), plain.first)
    torch.nn.init.normal_(untrained.parameters[-1], std=0.1)
    assert not torch.equal(untrained.acceptance(plain.choosing), plain.first)


def test_the_head_of_a_steered_drafter_is_trained_and_its_steering_kept(
    calibrated: Calibrated, directories: Pair, tiny: ModelPair, tmp_path: Path
) -> None:
    steered = random_steering(calibrated, tiny, tmp_path)
    options = ("--train", "head", "--learning-rate", "0.01")
    assert main(command(directories, steered, tmp_path, *options)) == 0
    before, after = digests(steered), digests(tmp_path / "out")
    changed = {"calibration.json", "pruned_drafter.safetensors"}
    assert {name for name in after if after[name] != before[name]} == changed


def test_a_drafter_that_cannot_be_steered_is_refused(
    directories: Pair, tiny: ModelPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = GPTNeoXConfig(vocab_size=VOCABULARY, num_attention_heads=2, **size)
    model = GPTNeoXForCausalLM(config)
    head = model.get_output_embeddings().weight.detach(), None
    drafter = PrunedDrafter.plain(head, Vocabulary(range(100), VOCABULARY))
    save_drafter(tmp_path / "other", model, tiny.tokenizer, drafter, {})
    assert main(command(directories, tmp_path / "other", tmp_path)) == 2
    said = capsys.readouterr().err
    assert "GPTNeoXForCausalLM" in said
    assert "needs a drafter with MLPs such as Llama's" in said


def measured(saved: Path, target: Path, text: list[Path], folder: Path, *more: object) -> Any:
    """What `evaluate` writes."""
    line = (saved, "--target", target, "--text", *text, "--output", folder / "evaluated", *more)
    assert main(["evaluate", *map(str, line)]) == 0
    return json.loads((folder / "evaluated" / "evaluation.json").read_text())


def test_a_steered_drafter_is_measured_as_it_drafts_and_refused_by_the_core(
    calibrated: Calibrated,
    directories: Pair,
    tmp_path: Path,
    tiny: ModelPair,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved, file = Path(shutil.copytree(calibrated.saved, tmp_path / "saved")), tmp_path / "short"
    file.write_text("def value in range import self\nclass return")
    asked = ("evaluate", saved, "--target", directories[0], "--text", file, "--output", tmp_path)
    Steering((0, 1, 1), state_size=3, layers=1, width=16).save(saved / "steering.safetensors")
    assert main(list(map(str, asked))) == 2
    assert "needs the target that it was trained for" in capsys.readouterr().err
    model, drafter, _ = load_drafter(calibrated.saved)
    steering = Steering.between(tiny.target, model)
    torch.nn.init.normal_(steering.out.weight)
    steering.save(saved / "steering.safetensors")
    for command_of_core in (asked, ("inspect", saved)):
        assert core(list(map(str, command_of_core))) == 2
        assert "rdk_cuda.labs.steering.generate_from(" in capsys.readouterr().err
    more = ("--temperature", 0.7, "--draft-length", 3)
    row = measured(saved, directories[0], [file], tmp_path, *more)["rows"][2]

    window = Window(0, tiny.tokenizer(file.read_text())["input_ids"])
    with torch.no_grad():
        read = steered_read(tiny.target, model, steering, 3)(torch.tensor([window.ids]))
        columns = drafter.columns(tiny.drafter_head, read.hidden[0], window.contexts[1:])
        q = redistribute(affinity=drafter.affinity, temperature=0.7, **columns)
    rates = torch.minimum((read.target_logits[0] / 0.7).softmax(-1), q).sum(1)
    assert row["acceptance"] == pytest.approx(float(rates.mean()), abs=1e-5)
