"""`calibrate`, `distill` and `evaluate` with drafters that read the target's hidden states."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from rdk_cuda import Vocabulary
from rdk_cuda.__main__ import main
from rdk_cuda.decoding import Generation, SpeculativeDecoder
from rdk_cuda.drafter import LiftedHead, SavedDrafterError
from rdk_cuda.integrations.eagle3 import (
    Eagle3Checkpoint,
    Eagle3Config,
    Eagle3Network,
    load_state_drafter,
    read_checkpoint,
)
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from rdk_cuda.integrations.huggingface.saved_drafter import load_drafter
from rdk_cuda.recipes import distill
from tests.tiny_models import VOCABULARY

from .calibrating import Pair, command, settings_of
from .conftest import Desk

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def save_checkpoint(
    folder: Path,
    target: Any,
    kept: int = VOCABULARY,
    *,
    shared: bool = False,
    layers: tuple[int, ...] = (0,),
    eagle2: bool = False,
) -> Path:
    """Random weights, but the target's embeddings, and for `shared` its head."""
    torch.manual_seed(3)
    size = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16}
    layer = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
    vocabulary = Vocabulary(range(0, kept), VOCABULARY)
    network = Eagle3Network(
        Eagle3Config(layer, kept, 16, eagle2=True, fc_bias=True)
        if eagle2
        else Eagle3Config(layer, kept, 16, state_layers=layers)
    )
    torch.nn.init.normal_(network.lm_head.weight, std=0.5)
    names = frozenset([EMBEDDING, HEAD] if shared else [EMBEDDING])
    Eagle3Checkpoint(network, vocabulary, shared=names).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(directories: Pair) -> Any:
    return AutoModelForCausalLM.from_pretrained(directories[0]).eval()


def calibrate(
    directories: Pair, checkpoint: Path, texts: list[Path], *options: object, own: bool = False
) -> Path:
    """Prunes as asked, or a drafter that keeps its own tokens."""
    out = checkpoint.with_name(f"{checkpoint.name}-out")
    argv = command((directories[0], checkpoint), texts, out, *options)
    if own or not options:
        place = argv.index("--keep")
        del argv[place : place + 2]
    assert main(argv) == 0
    return out


def decoder_of(saved: Path, target: Any) -> SpeculativeDecoder:
    drafter, pruned, _ = load_state_drafter(saved, target)
    return SpeculativeDecoder(
        HuggingFaceModel(target, state_layers=drafter.state_layers),
        drafter,
        pruned.affinity,
        vocabulary=pruned.vocabulary,
        dynamic_tokens=pruned.dynamic_tokens,
    )


def greedily_decoded(saved: Path, target: Any) -> Generation:
    """Two texts, which are the target's own."""
    prompts, settings = [[5, 3, 9, 200], [7, 7]], {"max_new_tokens": 12, "temperature": 0}
    alone = SpeculativeDecoder(HuggingFaceModel(target), draft_length=0)
    found = decoder_of(saved, target).generate(prompts, **settings)
    assert found.tokens == alone.generate(prompts, **settings).tokens
    return found


@pytest.fixture(scope="module")
def shared(
    directories: Pair, target: Any, texts: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A calibrated drafter of 100 tokens whose rows are the target's own; not to be changed."""
    folder = tmp_path_factory.mktemp("shared")
    return calibrate(directories, save_checkpoint(folder / "ck", target, 100, shared=True), texts)


def test_a_full_head_is_pruned_as_asked(desk: Desk, target: Any) -> None:
    saved = calibrate(
        desk.pair, save_checkpoint(desk.folder / "ck", target), desk.texts, "--seed", 1
    )
    settings = settings_of(saved)
    assert settings["keep"] == 0.75
    assert [row["method"] for row in settings["figures"]] == [
        *("full drafter", "pruned drafter", "virtual+dynamic")
    ]
    drafter, pruned, _ = load_state_drafter(saved, target)
    assert pruned.vocabulary.draft_size == 300
    assert drafter.full_head is not None
    assert torch.equal(drafter.full_head[0], drafter.network.lm_head.weight)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--data", "drafter"),
            "--data drafter: .* writes nothing by itself; needs target",
        ),
        (("--steps", "1", "--prompt", "1", "--learning-rate", "1e-9"), None),  # its head is trained
    ],
)
def test_it_is_distilled_with_what_it_has(
    desk: Desk, options: tuple[str, ...], said: str | None, shared: Path
) -> None:
    desk.patch.setattr(distill, "HELD_OUT_TEXTS", 4)
    given = ("--target", desk.pair[0], "--text", desk.texts[0], "--held-out", *desk.texts[1:5])
    argv = ["distill", *map(str, (shared, *given, "--out", desk.out, *options))]
    if said is None:
        assert main([*argv, "--tokens", "8"]) in (0, 1)
    else:
        assert re.search(said, desk.refused(argv))


def test_its_network_is_trained_and_saved(desk: Desk, shared: Path, target: Any) -> None:
    given = ("--target", desk.pair[0], "--text", desk.texts[0], "--held-out", *desk.texts[1:5])
    how = ("--train", "all", "--data", "text", "--prompt", 4, "--tokens", 12)
    steps = ("--steps", 30, "--learning-rate", 3e-3, "--out", desk.out)
    assert main(["distill", *map(str, (shared, *given, *how, *steps))]) == 0
    before, after = (load_state_drafter(path, target)[0] for path in (shared, desk.out))
    assert not torch.equal(before.network.fc.weight, after.network.fc.weight)
    assert torch.equal(before.network.embed_tokens.weight, after.network.embed_tokens.weight)
    greedily_decoded(desk.out, target)


def test_a_reduced_one_keeps_its_tokens_and_takes_the_target_s_rows_for_others(
    shared: Path, target: Any
) -> None:
    drafter, pruned, settings = load_state_drafter(shared, target)
    assert pruned.vocabulary == Vocabulary(range(100), VOCABULARY)
    assert settings["keep"] == 0.25
    full, plain, _ = settings["figures"]
    assert full["acceptance"] > plain["acceptance"]
    rows, head, lifted = target.get_output_embeddings().weight, drafter.full_head, pruned.lifted
    assert isinstance(head, LiftedHead)
    assert lifted is not None
    hidden, tokens = torch.randn(3, 16), torch.tensor([[200, 399]] * 3, dtype=torch.int32)
    expected = hidden @ lifted.rows(rows)[[200, 399]].T + lifted.bias[[200, 399]]
    torch.testing.assert_close(head(hidden, tokens), expected)
    assert torch.equal(pruned.weight[:100].half(), rows[:100].half())
    names = json.dumps(sorted(path.name for path in (shared / "drafter").iterdir()))
    assert "model.safetensors" in names
    assert "tokenizer.json" in names


def test_rows_that_nobody_has_are_lifted_from_the_target_s(desk: Desk, target: Any) -> None:
    """A head whose rows are a linear map of the target's, so that lifting is exact."""
    folder = save_checkpoint(desk.folder / "ck", target, 100, shared=True)
    checkpoint = read_checkpoint(folder, target)
    turned = torch.linalg.qr(torch.randn(16, 16)).Q
    rows = target.get_output_embeddings().weight.detach()
    checkpoint.network.lm_head.weight.data.copy_(rows[:100] @ turned)
    checkpoint.network.norm.weight.data.mul_(2)
    replace(checkpoint, dtype=torch.float32, shared=frozenset([EMBEDDING])).save_pretrained(folder)
    saved = calibrate(desk.pair, folder, desk.texts)
    assert (
        "they are lifted from the target's (share of a row's square that the map misses: 0%)"
        in desk.printed()
    )
    names = [row["method"] for row in settings_of(saved)["figures"]]
    assert names == ["lifted head", "pruned drafter", "virtual+dynamic"]
    drafter, pruned, _ = load_state_drafter(saved, target)
    head, hidden = drafter.full_head, torch.randn(3, 16)
    assert isinstance(head, LiftedHead)
    assert pruned.lifted is not None
    tokens = torch.tensor([[200, 399, -1]] * 3, dtype=torch.int32)
    own = pruned.lifted.rows(rows)[[200, 399]]
    expected = hidden @ own.T + pruned.lifted.bias[[200, 399]]
    torch.testing.assert_close(head(hidden, tokens)[:, :2], expected, rtol=0.02, atol=0.02)
    greedily_decoded(saved, target)
    desk.evaluate(saved)
    assert "No share of the loss is known" in desk.printed()


def test_eagle_2_s_head_is_pruned_by_an_fr_spec_list_and_its_rows_are_the_target_s(
    desk: Desk, target: Any
) -> None:
    checkpoint = save_checkpoint(desk.folder / "ck", target, shared=True, eagle2=True)
    ranked = list(range(359, 299, -1))
    torch.save([*ranked, 359], desk.folder / "freq_60.pt")  # FR-Spec's script repeats end tokens
    saved = calibrate(desk.pair, checkpoint, desk.texts, "--kept", desk.folder / "freq_60.pt")
    own = "The rows of pruned tokens are the target's own, as are the drafter's."
    assert own in desk.capsys.readouterr().out
    drafter, pruned, settings = load_state_drafter(saved, target)
    assert drafter.network.config.eagle2
    with pytest.raises(SavedDrafterError, match=r"needs .*load_state_drafter, and the target"):
        load_drafter(saved)
    assert pruned.vocabulary.draft_ids[:60].tolist() == ranked  # then special tokens and bytes
    rows = target.get_output_embeddings().weight
    assert drafter.full_head is not None
    assert torch.equal(drafter.full_head[0], rows)
    assert torch.equal(pruned.weight[:60].half(), rows[ranked].half())
    assert not {EMBEDDING, HEAD} & load_file(saved / "drafter" / "model.safetensors").keys()
    full, plain, _ = settings["figures"]
    assert full["acceptance"] > plain["acceptance"] > 0
    assert sum(greedily_decoded(saved, target).statistics.drafted) > 0
    measured = desk.evaluate(saved)["rows"]
    assert [row["method"] for row in measured] == [row["method"] for row in settings["figures"]]


def test_the_decoder_and_generate_load_it_and_greedy_output_is_the_target_s(
    shared: Path, target: Any
) -> None:
    greedily_decoded(shared, target)
    generate = Generate.from_directory(shared, target=target)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    ids = torch.tensor([[5, 3, 9, 200]])
    drafted = target.generate(ids, custom_generate=generate, **options)
    assert torch.equal(drafted, target.generate(ids, **options))


def test_models_in_bfloat16_say_about_the_same(desk: Desk, shared: Path, target: Any) -> None:
    checkpoint = save_checkpoint(desk.folder / "ck", target, 100, shared=True)
    options = ("--dtype", "bfloat16", "--recording", desk.folder / "recording")
    out = calibrate(desk.pair, checkpoint, desk.texts, *options, own=True)
    rows = zip(settings_of(out)["figures"], settings_of(shared)["figures"], strict=True)
    for half, whole in rows:
        assert abs(half["acceptance"] - whole["acceptance"]) < 0.02
    assert settings_of(out)["dtype"] == "bfloat16"
    drafter, pruned, _ = load_state_drafter(out, target.to(torch.bfloat16))
    assert drafter.dtype == torch.bfloat16
    target.to(torch.float32)
    assert pruned.weight.dtype == torch.float16


def test_a_recording_of_other_draft_lengths_is_not_used(desk: Desk, target: Any) -> None:
    checkpoint = save_checkpoint(desk.folder / "ck", target)
    kept = ("--recording", desk.folder / "recording", "--positions", 64)
    pair = desk.pair[0], checkpoint
    assert main(command(pair, desk.texts, desk.out, *kept, "--draft-length", 3)) == 0
    desk.capsys.readouterr()
    other = command(pair, desk.texts, desk.folder / "other", *kept, "--draft-length", 2)
    assert "--draft-length) was" in desk.refused(other)


def test_other_choices_of_tokens_and_other_loaders_are_refused(desk: Desk, shared: Path) -> None:
    drafter = shared / "drafter"
    argv = command((desk.pair[0], drafter), desk.texts, desk.out)
    assert "has a head of 100 tokens, which are the ones that are kept; leave out --keep" in (
        desk.refused(argv)
    )
    with pytest.raises(SavedDrafterError, match=r"needs .*load_state_drafter, and the target"):
        load_drafter(shared)
    other = AutoModelForCausalLM.from_pretrained(desk.pair[1]).eval()
    with pytest.raises(SavedDrafterError, match=r"load_state_drafter: .*target"):
        load_state_drafter(shared, other)
