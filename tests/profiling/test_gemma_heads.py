"""The studies of EAGLE-3 drafters for a real model, on tiny ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.demo import gemma
from examples.demo.corpus import training_files
from examples.eagle3.__main__ import new_network, write
from examples.eagle3.training import Recipe
from profiling.studies import gemma_decoding, gemma_heads, gemma_screens
from rdk_cuda import Vocabulary
from rdk_cuda.cli.models import load_models
from rdk_cuda.integrations.eagle3 import Eagle3Drafter

from ..tiny_models import save_pair

SIZE, LAYERS = 400, 8


def target() -> Any:
    torch.manual_seed(1)
    shape = {"vocab_size": SIZE, "hidden_size": 16, "intermediate_size": 16}
    config = LlamaConfig(
        **shape, num_hidden_layers=LAYERS, num_attention_heads=2, initializer_range=0.4
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def test_a_drafter_is_recorded_as_it_drafts() -> None:
    model = target()
    torch.manual_seed(2)
    network = new_network(model, Vocabulary.identity(SIZE), None).eval()
    windows = torch.randint(SIZE, (2, gemma_heads.WINDOW))
    recorded = gemma_heads.record(model, network, windows)
    states = model(windows, output_hidden_states=True).hidden_states
    drafter = Eagle3Drafter(network, LAYERS)
    read = torch.cat([states[at] for at in drafter.state_layers], -1)
    for place in (0, 1, 2, 30, 31, 32):
        at, depth = gemma_heads.FIRST + gemma_heads.STRIDE * place, place % gemma_heads.DEPTHS
        tokens = windows[1, : at + 1].tolist()
        known = len(tokens) - depth
        drafter.reset(1)
        drafter.observe([read[1, : known - 1]])
        for fed in (tokens[:known], *([each] for each in tokens[known:])):
            hidden = drafter.feed([fed], [1]).hidden
        assert hidden is not None
        torch.testing.assert_close(recorded.drafter[1, place], hidden[0, 0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(recorded.target[1, place], states[-1][1, at])
        assert recorded.contexts[1, place].tolist()[-at - 1 :] == tokens[-256:]


@pytest.fixture
def drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With all tokens, of a tiny target that is in place of the real one."""
    save_pair(tmp_path)
    model = target()
    model.save_pretrained(tmp_path / "target")
    models = load_models(tmp_path / "target", tmp_path / "target")
    monkeypatch.setattr(gemma, "load_gemma", lambda: models)
    monkeypatch.setattr(gemma, "refuse_missing", lambda: None)
    monkeypatch.setattr(gemma, "terms", lambda: "")
    every = Vocabulary.identity(SIZE)
    write(tmp_path / "full", new_network(model, every, None), every, Recipe(steps=1))
    return tmp_path / "full"


def test_what_comes_back_is_measured_where_something_is_lost(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = training_files()[:60]
    monkeypatch.setattr(gemma_heads, "training_files", lambda: files)
    monkeypatch.setattr(gemma_screens, "BUDGETS", (0.9,))
    monkeypatch.setattr(gemma_screens, "BATCHES", (1,))
    monkeypatch.setattr(gemma_screens, "VIRTUAL", 4)
    monkeypatch.setattr(gemma_screens, "_LEAST_WIDTH", 64)
    options = ["--full", str(drafter), "--text", "code", "--keep", "0.25"]
    assert gemma_heads.main([*options, "--output", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    by_choice: dict[str, list[Any]] = {}
    for row in rows:
        by_choice.setdefault(row["chosen"], []).append(row)
    assert list(by_choice) == ["like text", "a general vocabulary"]
    for own in by_choice.values():
        lost, recovered = own[:3], own[3:]
        assert [row["temperature"] for row in lost] == [1.0, 0.7, 0.0]
        assert bool(recovered) == any(row["lost"][1] > 0 for row in lost)
        assert all(row["full"] == lost[0]["full"] for row in own if row["temperature"] == 1)
    assert any("recovered" in row for row in rows)


def test_decoders_take_turns_and_their_parts_are_whole(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemma_decoding, "BUDGET", 0.9)
    monkeypatch.setattr(gemma_decoding, "PROFILED", 4)
    few = training_files()[:40]
    monkeypatch.setattr(gemma_decoding, "training_files", lambda: few)
    options = ["--full", str(drafter), "--kept", "100"]
    options += ["--batch", "2", "--draft-length", "2", "--temperature", "1", "--dtype", "bfloat16"]
    options += ["--tokens", "12", "--rounds", "2", "--output", str(tmp_path / "out.json")]
    assert gemma_decoding.main(["--device", "cpu", *options]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert next(row["decoder"] for row in rows) == gemma_decoding.ALONE
    library = rows.pop(1)
    assert library["decoder"] == gemma_decoding.LIBRARY
    assert library["tokens_per_second"][0] > 0
    assert len(rows) == 5
    for row in rows:
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert row["shares"]["target head"] > 0
        alone = row["decoder"] == gemma_decoding.ALONE
        assert (row["shares"]["drafter head"] == 0) == alone
        assert (row["accepted_length"] == 0) == alone
        low, high = row["tokens_per_second"][1:]
        assert 0 < low <= row["tokens_per_second"][0] <= high
    assert rows[0]["speed_up"] == [1.0, 1.0, 1.0]
    assert "| target alone" in (tmp_path / "out.md").read_text()
