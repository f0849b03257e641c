"""A calibrated drafter is the same after it was saved, or is refused with what is wrong."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.calibration import prune_head
from rdk_cuda.calibration.drafter import PrunedDrafter
from rdk_cuda.decoding import SpeculativeDecoder
from tests import interruptible

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
safetensors_torch = pytest.importorskip("safetensors.torch")

from rdk_cuda.integrations.huggingface import HuggingFaceModel  # noqa: E402
from rdk_cuda.integrations.huggingface.pruned_model import apply_head  # noqa: E402
from rdk_cuda.integrations.huggingface.saved_drafter import (  # noqa: E402
    SUCCESSORS,
    SavedDrafterError,
    drafting_model,
    load_drafter,
    load_head,
    save_drafter,
)

SIZE, WIDTH, CLUSTERS = 48, 16, 4
SETTINGS = {"keep": 0.25, "temperature": 1.0, "corpus": ["wörter.txt"], "window": None}


def tiny(*, tied: bool, seed: int = 1, width: int = WIDTH) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=SIZE,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).eval()


def words() -> Any:
    model = tokenizers.models.WordLevel({f"word{id}": id for id in range(SIZE)})
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model))


def pruned(model: Any, *, biased: bool = False) -> PrunedDrafter:
    """12 kept tokens in an order that is not ascending, and 4 virtual ones."""
    vocabulary = Vocabulary(range(36, 0, -3), target_size=SIZE)
    clusters = torch.full((SIZE,), -1)
    clusters[vocabulary.pruned] = torch.arange(SIZE - 12) % CLUSTERS
    affinity = Affinity.virtual_tokens(vocabulary, clusters, torch.arange(1.0, SIZE + 1))
    bias = torch.linspace(-1, 1, SIZE) if biased else None
    head = prune_head(model.lm_head.weight, bias, vocabulary, virtual=affinity)
    return PrunedDrafter(vocabulary, affinity, *head)


def names(folder: Path) -> list[str]:
    """What is there, with hidden files."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory to be spoiled."""
    model = tiny(tied=True)
    save_drafter(tmp_path / "pruned", model, words(), pruned(model), SETTINGS)
    return tmp_path / "pruned"


def generate(model: Any, drafter: PrunedDrafter) -> list[list[int]]:
    target = HuggingFaceModel(tiny(tied=False, seed=2))
    decoder = SpeculativeDecoder(target, drafting_model(model, drafter), drafter.affinity)
    tokens, statistics = decoder.generate([[1, 2], [47]], max_new_tokens=30, seeds=[5, 6])
    assert statistics.tokens == 60
    return tokens


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_loaded_drafter_decodes_the_same_tokens(
    tmp_path: Path, one_thread: None, tied: bool
) -> None:
    model = tiny(tied=tied)
    drafter = pruned(model, biased=True)
    save_drafter(tmp_path / "deep" / "pruned", model, words(), drafter, SETTINGS)
    loaded, again, settings = load_drafter(tmp_path / "deep" / "pruned")

    assert settings == SETTINGS
    assert again.vocabulary == drafter.vocabulary
    assert again.bias is not None
    assert drafter.bias is not None
    for one, other in (
        (drafter.weight, again.weight),
        (drafter.bias, again.bias),
        (drafter.affinity.dense(), again.affinity.dense()),
    ):
        torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert not loaded.training
    assert generate(loaded, again) == generate(model, drafter)


def test_the_model_inside_is_an_ordinary_one_with_its_full_head(saved: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(saved / "drafter")
    assert model.lm_head.weight.shape == (SIZE, WIDTH)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved / "drafter")
    assert tokenizer.convert_tokens_to_ids("word17") == 17


def test_a_model_with_a_small_head_would_not_load_as_an_ordinary_one(tmp_path: Path) -> None:
    # Why the directory has the full one.
    model = tiny(tied=True)
    apply_head(model, pruned(model).weight)
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=r"size mismatch|mismatched"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_dtype_is_that_of_what_was_saved(tmp_path: Path) -> None:
    model = tiny(tied=True).to(torch.bfloat16)
    save_drafter(tmp_path / "pruned", model, words(), pruned(model), {})
    loaded, drafter, _ = load_drafter(tmp_path / "pruned")
    assert loaded.dtype == drafter.weight.dtype == torch.bfloat16


def test_the_head_is_read_without_the_model(saved: Path) -> None:
    for file in (saved / "drafter").iterdir():
        file.unlink()
    drafter, settings = load_head(saved)
    assert drafter.vocabulary.draft_size == 12
    assert settings == SETTINGS


def test_a_table_of_successors_is_saved_beside(tmp_path: Path) -> None:
    class Table:
        def save(self, path: Path) -> None:
            path.write_bytes(b"table")

    model = tiny(tied=True)
    save_drafter(tmp_path / "pruned", model, words(), pruned(model), {}, successors=Table())
    assert (tmp_path / "pruned" / SUCCESSORS).read_bytes() == b"table"


# What already exists.


def test_what_exists_is_not_touched(tmp_path: Path) -> None:
    model = tiny(tied=True)
    file, folder, link = tmp_path / "file", tmp_path / "folder", tmp_path / "link"
    file.write_text("mine")
    folder.mkdir()
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, folder, link):
        with pytest.raises(SavedDrafterError, match=f"{path} exists; name another directory"):
            save_drafter(path, model, words(), pruned(model), {})
    (folder / "thesis.tex").write_text("mine")
    for path in (file, folder, link):
        with pytest.raises(SavedDrafterError, match=f"{path} is not a saved drafter"):
            save_drafter(path, model, words(), pruned(model), {}, overwrite=True)
    assert names(tmp_path) == ["file", "folder", "link"]
    assert (folder / "thesis.tex").read_text() == "mine"


def test_a_saved_drafter_is_overwritten_as_a_whole(saved: Path) -> None:
    (saved / SUCCESSORS).write_bytes(b"of the drafter before")
    model = tiny(tied=False, seed=7)
    save_drafter(saved, model, words(), pruned(model), {"new": True}, overwrite=True)
    assert SUCCESSORS not in names(saved)
    assert load_drafter(saved)[2] == {"new": True}
    assert names(saved.parent) == ["pruned"]


def test_a_failure_leaves_no_directory_and_an_old_one_as_it_was(
    saved: Path, tmp_path: Path
) -> None:
    class Full:
        def save(self, path: Path) -> None:
            path.write_bytes(b"half")
            raise OSError("No space left on device")

    model = tiny(tied=True)
    for path, overwrite in ((tmp_path / "new", False), (saved, True)):
        with pytest.raises(OSError, match="No space"):
            save_drafter(
                path, model, words(), pruned(model), {}, successors=Full(), overwrite=overwrite
            )
    assert names(tmp_path) == ["pruned"]
    assert load_drafter(saved)[2] == SETTINGS


def test_an_interruption_between_the_two_renamings_brings_the_old_directory_back(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def interrupted(source: Path, target: Path) -> Path:
        if (source / "drafter").exists() and source.suffix == ".tmp" and target == saved:
            raise KeyboardInterrupt
        return rename(source, target)

    model = tiny(tied=True)
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_drafter(saved, model, words(), pruned(model), {"new": True}, overwrite=True)
    assert names(saved.parent) == ["pruned"]
    assert load_drafter(saved)[2] == SETTINGS


# A drafter whose table takes its time to be saved.
SLOW = """
import sys, time
from pathlib import Path
from tests.calibration.test_saved_drafter import pruned, save_drafter, tiny, words

class Slow:
    def save(self, path):
        print("in the middle", flush=True)
        time.sleep(60)

model = tiny(tied=True)
save_drafter(sys.argv[1], model, words(), pruned(model), {}, successors=Slow())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_run_that_ends_in_the_middle_leaves_no_directory(
    tmp_path: Path, how: signal.Signals
) -> None:
    root = Path(__file__).parents[2]
    process = interruptible.start([sys.executable, "-c", SLOW, str(tmp_path / "pruned")], root)
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"
    process.send_signal(how)
    process.communicate(timeout=30)
    left = names(tmp_path)
    if how == signal.SIGINT:
        assert left == []
    else:  # nobody could tidy up, but what is left has another name and is hidden
        assert len(left) == 1
        assert left[0].startswith(".pruned.")


# What does not belong together.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: {"weight": d.weight[:-1]}, r"weight has shape \[15, 16\]"),
        (lambda d: {"weight": d.weight.int()}, "dtype torch.int32"),
        (lambda d: {"weight": d.weight / 0}, "not finite"),
        (lambda d: {"bias": torch.zeros(3)}, r"bias has shape \[3\].* \[V_d\] = \[16\]"),
        (lambda d: {"vocabulary": Vocabulary([0], SIZE + 1)}, "are 1 of 49, the affinity leads"),
        (lambda d: {"vocabulary": Vocabulary(range(17), SIZE)}, "are 17 of 48"),
        (lambda d: {"weight": d.weight[:, :8]}, r"is \[48, 16\]; needs .* = \[48, 8\]"),
    ],
)
def test_parts_that_disagree_are_not_saved(tmp_path: Path, change: Any, message: str) -> None:
    model = tiny(tied=True)
    drafter = pruned(model)
    with pytest.raises(SavedDrafterError, match=message):
        save_drafter(tmp_path / "pruned", model, words(), replace(drafter, **change(drafter)), {})
    assert names(tmp_path) == []


def test_a_model_whose_head_was_replaced_is_not_saved(tmp_path: Path) -> None:
    model = tiny(tied=True)
    drafter = pruned(model)
    apply_head(model, drafter.weight)
    with pytest.raises(SavedDrafterError, match="before any apply_head"):
        save_drafter(tmp_path / "pruned", model, words(), drafter, {})
    with pytest.raises(SavedDrafterError, match="LlamaModel has no LM head"):
        save_drafter(tmp_path / "pruned", model.base_model, words(), drafter, {})


@pytest.mark.parametrize("value", [float("nan"), torch.ones(1), {1, 2}])
def test_settings_that_json_cannot_hold_are_refused(tmp_path: Path, value: Any) -> None:
    model = tiny(tied=True)
    with pytest.raises(SavedDrafterError, match="settings cannot be JSON"):
        save_drafter(tmp_path / "pruned", model, words(), pruned(model), {"value": value})
    assert names(tmp_path) == []


# Broken directories.


def spoil_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rewrite_head(file: Path, drop: str = "", **changes: Any) -> None:
    """The file with other tensors or metadata."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        metadata = content.metadata()
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    for name, change in changes.items():
        target = metadata if isinstance(change, str) else tensors
        target[name] = change
    tensors.pop(drop, None)
    safetensors_torch.save_file(tensors, file, metadata)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def with_another_model(directory: Path) -> None:
    tiny(tied=True, width=2 * WIDTH).save_pretrained(directory / "drafter")


def with_pickled_weights(directory: Path) -> None:
    model = directory / "drafter"
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def with_another_affinity(directory: Path) -> None:
    Affinity.intersection(Vocabulary.identity(SIZE)).save(directory / "affinity.safetensors")


def with_another_target(directory: Path) -> None:
    Affinity.intersection(Vocabulary([0], SIZE + 2)).save(directory / "affinity.safetensors")


HEAD = "head.safetensors"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / HEAD).unlink(), "pruned has no head.safetensors; needs the whole"),
        (lambda d: (d / "calibration.json").unlink(), "has no calibration.json"),
        (lambda d: (d / "affinity.safetensors").unlink(), "has no affinity.safetensors"),
        (lambda d: (d / "drafter").rename(d / "model"), "has no drafter"),
        (lambda d: truncate(d / HEAD), "head.safetensors is not a complete safetensors file"),
        (lambda d: truncate(d / "affinity.safetensors"), "affinity.safetensors is not a complete"),
        (lambda d: truncate(d / "drafter" / "model.safetensors"), "pruned/drafter: "),
        (lambda d: (d / "calibration.json").write_text("{"), "calibration.json is not JSON"),
        (lambda d: (d / "calibration.json").write_bytes(b"\xff"), "calibration.json is not JSON"),
        (lambda d: (d / "calibration.json").write_text("[]"), "json is of format None; needs"),
        (
            lambda d: spoil_json(d / "calibration.json", format_version="2"),
            "calibration.json has format version '2'; this rdk_cuda reads version 1",
        ),
        (lambda d: spoil_json(d / "calibration.json", settings=3), "has no settings"),
        (lambda d: rewrite_head(d / HEAD, format="other"), "head.safetensors is of format 'other'"),
        (lambda d: rewrite_head(d / HEAD, format_version="9"), "has format version '9'"),
        (lambda d: rewrite_head(d / HEAD, target_size="2000000000"), "is for 2000000000 target"),
        (lambda d: rewrite_head(d / HEAD, drop="kept"), r"holds \['weight'\]; needs weight, kept"),
        (lambda d: rewrite_head(d / HEAD, more=torch.ones(1)), r"holds \['kept', 'more'"),
        (lambda d: rewrite_head(d / HEAD, kept=torch.tensor([0, 0])), "are both 0"),
        (lambda d: rewrite_head(d / HEAD, kept=torch.tensor([SIZE])), r"draft_ids\[0\] is 48"),
        (lambda d: rewrite_head(d / HEAD, weight=torch.ones(4, WIDTH)), r"shape \[4, 16\]"),
        (lambda d: rewrite_head(d / HEAD, bias=torch.ones(4)), r"bias has shape \[4\]"),
        (lambda d: rewrite_head(d / HEAD, weight=torch.full((16, 16), torch.nan)), "not finite"),
        (with_another_affinity, r"shape \[16, 16\].* needs .* V_d = 48"),
        (with_another_target, "is for 48 target tokens, .*affinity.safetensors for 50"),
        (with_another_model, r"drafter: the LM head of LlamaForCausalLM is \[48, 32\]; needs"),
        (with_pickled_weights, "safetensors"),
        (lambda d: (d / "drafter" / "config.json").unlink(), "drafter has no config.json"),
        (lambda d: spoil_json(d / "drafter" / "config.json", num_hidden_layers=2), "lacks 9"),
    ],
)
def test_a_broken_directory_is_refused_by_the_file(saved: Path, spoil: Any, message: str) -> None:
    spoil(saved)
    with pytest.raises(SavedDrafterError, match=message) as refusal:
        load_drafter(saved)
    assert str(saved) in str(refusal.value)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedDrafterError, match="missing is no directory; needs a saved"):
        load_drafter(tmp_path / "missing")
