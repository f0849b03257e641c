"""Published heads that are unusual, but no reason to refuse them: each reads as it should."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.eagle3 import (
    CheckpointError,
    Eagle3Checkpoint,
    Eagle3Config,
    Eagle3Drafter,
    Eagle3Network,
    read_checkpoint,
    unrolled_read,
)
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.states import states_of
from tests.tiny_llamas import shape

from .test_published import PUBLISHED, logits_along_a_draft, target

IDS = torch.tensor([[5, 3, 1, 7, 2]])


def changed(
    name: str, folder: Path, fields: dict[str, Any], tensors: dict[str, Any] | None = None
) -> Path:
    """A published drafter with other fields, and other tensors where these are given."""
    shutil.copytree(PUBLISHED / name, folder, dirs_exist_ok=True)
    said = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(said))
    old = folder / "pytorch_model.bin"
    if tensors is not None and old.exists():
        whole = torch.load(old, weights_only=True) | tensors
        old.unlink()
        kept = {name: each.contiguous() for name, each in whole.items() if each is not None}
        save_file(kept, folder / "model.safetensors")
    return folder


def eagle(folder: Path, fields: dict[str, Any], tensors: Any = None) -> Eagle3Checkpoint:
    """EAGLE's own, for the target that it was made for."""
    return read_checkpoint(changed("eagle", folder, fields, tensors), eagle_target())


def eagle_target() -> Any:
    expected = load_file(PUBLISHED / "eagle" / "expected.safetensors")
    return target(expected.get("embedding"), expected.get("head"))


@pytest.mark.parametrize(
    "fields",
    [
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}},  # ModelOpt's default
        {"num_hidden_layers": 40},  # the target's number, as of Vicuna 13B's
    ],
    ids=["no layer ids", "the target's layers"],
)
def test_it_reads_as_without_these_fields(fields: dict[str, Any], tmp_path: Path) -> None:
    expected = load_file(PUBLISHED / "eagle" / "expected.safetensors")
    found = eagle(tmp_path, fields)
    plain = eagle(tmp_path / "plain", {})
    logits = logits_along_a_draft(found.network, expected)
    assert torch.equal(logits, logits_along_a_draft(plain.network, expected))
    assert found.network.config.layers_read(8) == (2, 4, 5)


def test_layer_l_is_read_before_the_last_norm(tmp_path: Path) -> None:
    found = eagle(tmp_path, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [6, 7, 8]}})
    model = eagle_target()
    drafter = Eagle3Drafter(found.network, 8)
    assert drafter.state_layers == (6, 7, 9)
    reading = HuggingFaceModel(model, state_layers=drafter.state_layers)
    reading.reset(1)
    (states,) = reading.feed(IDS.tolist(), [5]).states
    before: list[torch.Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    with torch.no_grad():
        hidden = model(IDS, output_hidden_states=True).hidden_states
    handle.remove()
    torch.testing.assert_close(states[:, -16:], before[0][0])
    torch.testing.assert_close(states[:, :32], torch.cat(hidden[6:8], -1)[0])
    assert not torch.allclose(states[:, -16:], hidden[8][0], atol=1e-3)
    decoder = SpeculativeDecoder(reading, drafter, found_affinity(found), draft_length=3)
    settings: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
    alone = SpeculativeDecoder(HuggingFaceModel(model), draft_length=0)
    prompts = [[5, 3, 1], [7]]
    expected = alone.generate(prompts, **settings).tokens
    assert decoder.generate(prompts, **settings).tokens == expected
    assert unrolled_read(model, found.network, 2)(IDS).hidden.isfinite().all()
    assert not model.model.norm._forward_pre_hooks
    with pytest.raises(ValueError, match="needs numbers from 0 to 9, as LlamaForCausalLM has 8"):
        HuggingFaceModel(model, state_layers=[10])


def found_affinity(checkpoint: Eagle3Checkpoint) -> Any:
    return Affinity.intersection(checkpoint.vocabulary)


def test_threads_read_their_own_states_before_the_last_norm() -> None:
    model, ids = eagle_target(), IDS[:, :3]
    depth = model.config.num_hidden_layers
    with states_of(model, (depth + 1,), depth) as joined, ThreadPoolExecutor(1) as another:
        result = model(ids, output_hidden_states=True)
        another.submit(model, ids).result()
        assert joined(result).shape == (1, 3, model.config.hidden_size)


def test_padding_behind_the_target_s_tokens_is_cut_off(tmp_path: Path) -> None:
    rows = torch.randn(48, 16)
    found = eagle(
        tmp_path, {"draft_vocab_size": 48}, {"lm_head.weight": rows, "d2t": None, "t2d": None}
    )
    assert found.vocabulary.draft_size == found.vocabulary.target_size == 40
    assert torch.equal(found.network.lm_head.weight, rows[:40])


def test_the_last_state_alone_is_read_as_it_is(tmp_path: Path) -> None:
    fields = {"eagle_config": {"use_aux_hidden_state": False}}
    found = eagle(tmp_path, fields, {"fc.weight": None})
    drafter = Eagle3Drafter(found.network, 8)
    assert drafter.state_layers == (8,)
    states = torch.randn(2, 16)
    assert found.network.fuse(states) is states
    found.save_pretrained(tmp_path / "again")
    again = read_checkpoint(tmp_path / "again", eagle_target())
    assert again.network.config.reads_last
    model = eagle_target()
    reading = HuggingFaceModel(model, state_layers=drafter.state_layers)
    decoder = SpeculativeDecoder(reading, drafter, found_affinity(found), draft_length=3)
    assert decoder.generate([[5, 3], [7]], max_new_tokens=9).statistics.tokens == 18
    wide = {"hidden_size": 32, "eagle_config": {"use_aux_hidden_state": False}}
    with pytest.raises(CheckpointError, match="hidden_size is 32, and the target's states have 16"):
        eagle(tmp_path, wide)


def test_what_nemo_writes_beside_a_drafter_is_named(tmp_path: Path) -> None:
    (tmp_path / "eagle_meta.pt").write_bytes(b"")
    (tmp_path / "model").mkdir()
    shutil.copy(PUBLISHED / "eagle" / "config.json", tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"has no config\.json; needs its folder model"):
        read_checkpoint(tmp_path, eagle_target())
    with pytest.raises(CheckpointError, match=r"eagle_meta\.pt has them as selected_token_ids"):
        eagle(tmp_path / "model", {}, {"d2t": None, "t2d": None})


def test_embeddings_of_another_target_are_told(tmp_path: Path) -> None:
    other = target(torch.randn(40, 16))
    folder = changed("eagle", tmp_path, {}, {"embed_tokens.weight": torch.randn(40, 16)})
    with pytest.warns(UserWarning, match=r"its embeddings differ from the target's by 1\.\d of"):
        read_checkpoint(folder, other)


def test_embeddings_of_another_width_are_not_compared(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    layer = shape(40, width=24, heads=4)
    network = Eagle3Network(Eagle3Config(layer, draft_size=40, target_hidden_size=16))
    Eagle3Checkpoint(network, Vocabulary.identity(40), torch.float32).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        tensors | {"embed_tokens.weight": torch.randn(40, 24)}, tmp_path / "model.safetensors"
    )
    assert read_checkpoint(tmp_path, target()).network.config.layer.hidden_size == 24
    assert not [each for each in recwarn if "embeddings differ" in str(each.message)]
