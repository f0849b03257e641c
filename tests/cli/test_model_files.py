"""`calibrate` and `evaluate` on a model with sliding windows, from a GGUF file and in bfloat16."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples.demo.text import held_out_prompts
from rdk_cuda.__main__ import main
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.saved_drafter import drafting_model, load_drafter
from rdk_cuda.recipes.inputs import loading as model_files
from rdk_cuda.recipes.inputs.documents import calibration_and_held_out
from rdk_cuda.recipes.inputs.loading import load_model, load_tokenizer
from tests.gguf_files import WINDOW, gemma, save_gguf

from .calibrating import command, write_texts
from .conftest import Desk


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file, alone in its folder but for a folder of its tokenizer."""
    path: Path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    save_gguf(path, gemma())
    return path


def test_a_gguf_file_has_the_model_and_its_tokenizer(file: Path) -> None:
    """Named itself or by its folder; its weights are plain numbers, which can be saved."""
    ids = torch.arange(3 * WINDOW)[None]
    own = load_tokenizer("--target", file.parent / "of the file")
    for path in (file, file.parent):
        model = load_model("--target", path)
        assert torch.equal(model(ids).logits, gemma()(ids).logits)
        assert model.config.sliding_window == WINDOW
        text = file.parent.joinpath("of the file", "tokenizer.json").read_text()[:500]
        assert load_tokenizer("--target", path)(text) == own(text)
    model.save_pretrained(file.parent / "saved")
    assert "quantization_config" not in (file.parent / "saved" / "config.json").read_text()
    shutil.rmtree(file.parent / "saved")


@pytest.mark.night
@pytest.mark.parametrize("dtype", ["gguf", "bfloat16"])
def test_commands_take_it_and_its_drafter_decodes(desk: Desk, file: Path, dtype: str) -> None:
    """Texts of many windows; greedy output beyond two of them is the target's own."""
    drafter = file
    if dtype == "bfloat16":
        drafter = desk.folder / "drafter"
        gemma(hidden=8, seed=2).to(torch.bfloat16).save_pretrained(drafter)
    files = write_texts(desk.folder / "text")
    assert main(command((file, drafter), files, desk.out)) == 0
    saved, pruned, settings = load_drafter(desk.out)
    assert saved.dtype == (torch.float32 if dtype == "gguf" else torch.bfloat16)
    assert saved.config.sliding_window == WINDOW
    rows = desk.evaluate(desk.out, "--temperature", "1", target=file, text=files[4:5])["rows"]
    assert [row["acceptance"] for row in rows] == [row["acceptance"] for row in settings["figures"]]
    assert "de-quantizing" not in desk.capsys.readouterr().err

    target = load_model("--target", file)
    decoder = SpeculativeDecoder(
        HuggingFaceModel(target),
        drafting_model(saved, pruned),
        pruned.affinity,
        dynamic_tokens=pruned.dynamic_tokens,
    )
    prompts = [load_tokenizer("--t", file)(files[4].read_text())["input_ids"][:n] for n in (5, 40)]
    tokens, *_ = decoder.generate(prompts, max_new_tokens=3 * WINDOW, temperature=0)
    for prompt, ours in zip(prompts, tokens, strict=True):
        theirs = target.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=3 * WINDOW, eos_token_id=None
        )
        assert ours == theirs[0, len(prompt) :].tolist()


def test_windows_and_prompts_begin_as_the_tokenizer_begins_texts(desk: Desk) -> None:
    from tokenizers.processors import TemplateProcessing

    files = write_texts(desk.folder)
    for begins in (False, True):
        tokenizer = load_tokenizer("--t", desk.pair[0])
        if begins:
            tokenizer.bos_token = "<|endoftext|>"
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
            )
        text, held_out = calibration_and_held_out(tokenizer, files, (), 512, 4)
        windows = replace(text, length=40).windows(10_000)
        windows += replace(held_out, measured=100).held_out_windows()
        prompts = held_out_prompts(tokenizer, length=30)
        stretches = [window.ids for window in windows] + [prompt.ids for prompt in prompts]
        assert {len(prompt.ids) for prompt in prompts} == {30}
        assert {ids[0] == 0 for ids in stretches} == {begins}
        assert not any(0 in ids[1:] for ids in stretches)


def test_files_that_cannot_be_read_are_refused_in_one_line(desk: Desk, file: Path) -> None:
    texts, broken = write_texts(desk.folder / "text"), desk.folder / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:5000])
    answer = desk.refused(command((broken, broken), texts, desk.out))
    assert f"--target {broken}: " in answer
    broken.write_bytes(b"PK\x03\x04" + file.read_bytes())
    assert f"--target {broken}: " in desk.refused(command((broken, file), texts, desk.folder / "o"))
    shutil.copy(file, desk.folder / "second.gguf")
    answer = desk.refused(command((desk.folder, file), texts, desk.out))
    assert f"--target {desk.folder}: holds 2 GGUF files, as broken.gguf; name one of them" in answer
    missing = desk.folder / "missing.gguf"
    answer = desk.refused(command((missing, file), texts, desk.out))
    assert f"--target {missing}: no such directory" in answer
    desk.patch.setattr(model_files, "find_spec", lambda name: None if name == "gguf" else name)
    answer = desk.refused(command((file, file), texts, desk.out))
    assert "a GGUF file needs gguf: in the source folder, pip install" in answer
    assert "'.[gguf]'" in answer
