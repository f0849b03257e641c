"""`calibrate --drafter mtp`: the target's own multi-token head is the drafter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("transformers", minversion="5.24")

from rdk_cuda.__main__ import main
from rdk_cuda.drafter import SavedDrafterError
from rdk_cuda.integrations.eagle3 import load_state_drafter
from rdk_cuda.integrations.huggingface import Generate
from rdk_cuda.recipes import distill
from tests.integrations.mtp.heads import head_of, load, make, publish
from tests.tiny_models import VOCABULARY, save_tokenizer

from .calibrating import command, refusal, settings_of

# With the target's LM head, and with one of its own.
KINDS = ("qwen3_5_text", pytest.param("glm4_moe", marks=pytest.mark.ci))


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target as its family publishes it; not to be changed."""
    folder = tmp_path_factory.mktemp("mtp") / "target"
    target = make(request.param, vocab_size=VOCABULARY, max_position_embeddings=512)
    network = head_of(target)
    if request.param == "glm4_moe":
        network.lm_head.weight = torch.randn(VOCABULARY, 32)
    publish(folder, target, network, name=request.param)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def saved(directory: Path, texts: list[Path]) -> Path:
    """Not to be changed."""
    out = directory.parent / "out"
    assert main(command((directory, Path("mtp")), texts, out)) == 0
    return out


def test_a_small_head_is_all_that_it_writes_beside_the_layer(directory: Path, saved: Path) -> None:
    settings, target = settings_of(saved), load(directory)
    assert settings["drafter"] == "mtp"
    _, plain, best = settings["figures"]
    assert best["acceptance"] > plain["acceptance"] > 0
    assert {path.name for path in (saved / "drafter").iterdir()} >= {"tokenizer.json"}
    drafter, pruned, _ = load_state_drafter(saved, target)
    assert 300 <= len(pruned.weight) <= 308
    rows, full_head = target.get_output_embeddings().weight, drafter.full_head
    assert isinstance(full_head, tuple)
    own = target.config.model_type == "glm4_moe"
    assert own != (full_head[0].data_ptr() == rows.data_ptr())
    kept = full_head[0][pruned.vocabulary.draft_ids]
    assert torch.equal(pruned.weight[:300], kept)
    wide = [w for w in load_file(saved / "drafter" / "model.safetensors").values() if len(w) == 400]
    assert len(wide) == own


def test_it_is_evaluated_and_generates(
    directory: Path, saved: Path, texts: list[Path], tmp_path: Path
) -> None:
    given = ("evaluate", saved, "--target", directory, "--text", *texts[4:], "--output", tmp_path)
    assert main([*map(str, given)]) == 0
    measured = json.loads((tmp_path / "evaluation.json").read_text())
    assert measured["calibrated_target"] is True
    assert [row["method"] for row in measured["rows"]] == [
        row["method"] for row in settings_of(saved)["figures"]
    ]
    target = load(directory)
    generate = Generate.from_directory(saved, target=target)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    options["eos_token_id"] = None
    ids = torch.tensor([[5, 3, 9, 200], [7, 1, 3, 2]])
    drafted = target.generate(ids, custom_generate=generate, **options)
    assert torch.equal(drafted, target.generate(ids, **options))
    assert generate.statistics is not None
    assert sum(generate.statistics.drafted) > 0
    with pytest.raises(SavedDrafterError, match=r"from_directory\(\.\.\., target=\)"):
        Generate.from_directory(saved)


@pytest.mark.parametrize("directory", KINDS[:1], indirect=True)
def test_its_layer_and_its_rows_are_trained(
    directory: Path,
    saved: Path,
    texts: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distill, "HELD_OUT_TEXTS", 4)
    target, given = load(directory), ("--target", directory, "--text", texts[0])
    given = (*given, "--held-out", *texts[1:5], "--data", "text", "--prompt", 4, "--tokens", 12)
    before, pruned, _ = load_state_drafter(saved, target)
    for part in ("all", "virtual-rows"):
        out = tmp_path / part
        how = ("--train", part, "--steps", 30, "--learning-rate", 3e-3, "--out", out)
        assert main(["distill", *map(str, (saved, *given, *how))]) == (0 if out.exists() else 1)
        if part == "all":
            after, trained, _ = load_state_drafter(out, target)
            assert not torch.equal(before.network.fc.weight, after.network.fc.weight)
            assert not torch.equal(pruned.weight, trained.weight)


def test_what_has_no_head_is_refused(
    directories: tuple[Path, Path],
    texts: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = command((directories[0], Path("mtp")), texts, tmp_path / "out")
    assert "is of type 'llama', whose multi-token head is not known" in refusal(capsys, argv)
