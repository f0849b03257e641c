"""What is no EAGLE drafter for the target is refused, by the field or the tensor."""

import json
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdk_cuda.integrations.eagle3 import CheckpointError, is_checkpoint, read_checkpoint

from ...bounded_memory import memory_for
from .test_published import PUBLISHED, target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PUBLISHED / "speculators_llama", tmp_path / "drafter"))


def field(name: str, value: Any, inside: str | None = None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        fields = json.loads(path.read_text())
        (fields[inside] if inside else fields)[name] = value
        path.write_text(json.dumps(fields))

    return change


def tensor(
    name: str, change: Callable[[torch.Tensor], torch.Tensor | None]
) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        changed = change(tensors.pop(name, torch.zeros(2)))
        if changed is not None:
            tensors[name] = changed.contiguous()
        save_file(tensors, path)

    return apply


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for change in changes:
            change(folder)

    return apply


def text(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


LAYER = "transformer_layer_config"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (field("speculators_model_type", "dflash"), "speculators_model_type is 'dflash'"),
        (field("model_type", "mixtral", LAYER), "model_type is 'mixtral'"),
        (field("vocab_size", 41, LAYER), "vocab_size is 41, and the target predicts 40"),
        (field("hidden_size", -16, LAYER), "hidden_size is -16"),
        (field("layer_types", ["sliding_attention"], LAYER), "sliding windows"),
        (field("quantization_config", {"bits": 4}), "has a quantization_config"),
        (field("target_hidden_size", 32), "target_hidden_size is 32"),
        (field("draft_vocab_size", 13), "d2t has 12 tokens; needs draft_vocab_size = 13"),
        (field("draft_vocab_size", True), "draft_vocab_size is True"),
        (field("eagle_aux_hidden_state_layer_ids", [1, 2, 9]), "needs different ones from 0 to 8"),
        (field("eagle_aux_hidden_state_layer_ids", "2"), "needs a list of layers"),
        (field(LAYER, []), "transformer_layer_config is []"),
        (field("model_type", ["llama"], LAYER), "model_type is ['llama']"),
        (field("hidden_act", "none", LAYER), "hidden_act is 'none'"),
        (field("hidden_act", 3, LAYER), "hidden_act is 3"),
        (field("layer_types", 5, LAYER), "layer_types is 5"),
        (field("num_hidden_layers", None, LAYER), "num_hidden_layers is None"),
        (field("num_attention_heads", 0, LAYER), "num_attention_heads is 0"),
        (field("num_key_value_heads", -2, LAYER), "num_key_value_heads is -2"),
        (field("num_key_value_heads", 3, LAYER), "num_key_value_heads 3"),
        (field("head_dim", 7, LAYER), "head_dim"),
        (field("attention_bias", "no", LAYER), "attention_bias is 'no'"),
        (field("rms_norm_eps", 10**400, LAYER), "rms_norm_eps is 1000"),
        (field("rope_parameters", 5, LAYER), "rope_parameters is 5"),
        (field("rope_parameters", {"rope_type": "none"}, LAYER), "rope_type is 'none'"),
        (field("rope_parameters", {"rope_type": ["linear"]}, LAYER), "rope_type is ['linear']"),
        (field("rope_parameters", {"rope_type": "linear"}, LAYER), "rope_parameters"),
        (
            field("rope_parameters", {"rope_type": "linear", "factor": "2"}, LAYER),
            "rope_parameters",
        ),
        (field("architectures", json.loads("[" * 300 + "]" * 300)), "nested more than 100 times"),
        (tensor("norm.weight", lambda t: t.to(torch.float8_e4m3fn)), "torch.float8_e4m3fn"),
        (tensor("fc.weight", lambda t: t[:, :32]), r"fc.weight has shape [16, 32]"),
        (tensor("fc.weight", lambda t: t.long()), "and dtype torch.int64"),
        (tensor("norm.weight", lambda t: None), "has no norm.weight"),
        (tensor("layers.1.mlp.weight", lambda t: t), "layers.1.mlp.weight has no place"),
        (tensor("midlayer.hidden_norm.weight", lambda t: t), "has a second layers.0.hidden_norm"),
        (tensor("d2t", lambda t: t + 40), "d2t does not fit"),
        (tensor("d2t", lambda t: None), "no d2t that says which"),
        (text("config.json", b"{"), "is no JSON"),
        (text("config.json", b"[]"), "holds a list"),
        (text("model.safetensors", b"\x08"), "needs a file of plain tensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds neither model.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    ],
)
def test_it_is_refused(folder: Path, change: Callable[[Path], None], named: str) -> None:
    change(folder)
    assert_refused(folder, named)


def assert_refused(folder: Path, named: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        read_checkpoint(folder, target())
    assert named in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (field("intermediate_size", 40_000_000, LAYER), "needs [16, 40000000]"),
        (field("head_dim", 50_000_000, LAYER), "needs [100000000, 32]"),
        (field("head_dim", 2**31 - 2, LAYER), "needs "),
        (field("num_hidden_layers", 3_000_000, LAYER), "num_hidden_layers is 3000000"),
        (
            both(
                field("model_type", "qwen3", LAYER),
                field("num_hidden_layers", 2_000_000_000, LAYER),
            ),
            "num_hidden_layers is 2000000000",
        ),
        (field("draft_vocab_size", 2**31), "needs a positive integer below 2^31"),
    ],
)
def test_sizes_beyond_the_tensors_are_refused_before_anything_is_made_of_them(
    folder: Path, change: Callable[[Path], None], named: str
) -> None:
    change(folder)
    started = time.process_time()
    with memory_for(1 << 28):
        assert_refused(folder, named)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_control_rotary_tables_of_other_kinds_are_made(folder: Path, rope: dict[str, Any]) -> None:
    field("rope_parameters", {"rope_theta": 10000.0, **rope}, LAYER)(folder)
    plain = target().model.rotary_emb.inv_freq
    table = read_checkpoint(folder, target()).network.rotary_emb.inv_freq
    assert table.device.type == "cpu"
    assert not torch.equal(table, plain[: len(table)])


def test_a_field_that_the_layers_do_not_read_costs_nothing(folder: Path) -> None:
    field("num_labels", 30_000_000, LAYER)(folder)
    with memory_for(1 << 28):
        assert read_checkpoint(folder, target()).vocabulary.target_size == 40


@pytest.mark.parametrize("name", ["d2t", "embed_tokens.weight"])
def test_a_tensor_that_is_longer_than_its_bytes_is_refused(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    kind = torch.zeros(1, 1, dtype=torch.int64 if name == "d2t" else torch.float32)
    tensors[name] = kind[0].expand(2**31) if name == "d2t" else kind.expand(40, 50_000_000)
    torch.save(tensors, folder / "pytorch_model.bin")
    with memory_for(1 << 28):
        assert_refused(folder, "needs whole tensors")


def test_a_tensor_whose_bytes_are_more_than_an_integer_counts_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors["embed_tokens.weight"] = torch.zeros(1).as_strided((2**62,), (0,))
    torch.save(tensors, folder / "pytorch_model.bin")
    assert_refused(folder, "needs whole tensors")


def test_a_dtype_that_torch_lacks_is_refused(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, end = json.loads(content[8 : 8 + size]), len(content) - 8 - size
    header["more"] = {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [end, end + 3]}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + content[8 + size :] + bytes(3)
    (folder / "model.safetensors").write_bytes(content)
    assert_refused(folder, "more cannot be read")


def without_the_bias(folder: Path) -> None:
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    del tensors["fc.bias"]
    torch.save(tensors, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (field("bias", "no"), "bias is 'no'; needs true or false"),
        (field("bias", False), "fc.bias has no place"),
        (without_the_bias, "has no fc.bias"),
        (field("norm_output", True), "norm_output is EAGLE-3's"),
        (field("eagle_aux_hidden_state_layer_ids", [1]), "layer_ids is EAGLE-3's"),
        (field("hidden_size", 32), "hidden_size is 32, and the target's states have 16"),
        (field("model_type", "mixtral"), "model_type is 'mixtral'"),
        (field("draft_vocab_size", 12), "no d2t that says which"),
        (field("num_hidden_layers", 2), "num_hidden_layers is 2, and there are tensors of 1"),
    ],
)
def test_it_is_refused_of_eagle_2(
    tmp_path: Path, change: Callable[[Path], None], named: str
) -> None:
    folder = Path(shutil.copytree(PUBLISHED / "eagle2", tmp_path / "drafter"))
    change(folder)
    assert_refused(folder, named)


def test_a_language_model_is_no_checkpoint_and_neither_are_damaged_files(tmp_path: Path) -> None:
    target().save_pretrained(tmp_path)
    assert not is_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    assert not is_checkpoint(tmp_path)
    assert not is_checkpoint(tmp_path / "missing")


def test_a_pickle_that_asks_for_code_runs_nothing(folder: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Payload()}))
    with pytest.raises(CheckpointError, match="needs a file of plain tensors"):
        read_checkpoint(folder, target())
    assert not (tmp_path / "ran").exists()


def test_code_next_to_a_checkpoint_is_not_run(folder: Path, tmp_path: Path) -> None:
    assert "auto_map" in (folder / "config.json").read_text()
    (folder / "config.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    read_checkpoint(folder, target())
    assert not (tmp_path / "ran").exists()


def test_shards_are_read_and_their_names_stay_in_the_folder(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for part, own in (("1.safetensors", names[:5]), ("2.safetensors", names[5:])):
        save_file({name: tensors[name] for name in own}, folder / part)
    index = {name: "1.safetensors" if name in names[:5] else "2.safetensors" for name in names}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert read_checkpoint(folder, target()).vocabulary.target_size == 40
    for wrong in ({"fc.weight": "../1.safetensors"}, {"fc.weight": "3.safetensors"}, []):
        path.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(CheckpointError, match="index"):
            read_checkpoint(folder, target())
