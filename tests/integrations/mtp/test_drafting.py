"""Multi-token heads: trimmed, trained, and beside the library's own generator."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24")
from examples.demo.corpus import held_out_files, read_text
from rdk_cuda.__main__ import main
from rdk_cuda.calibration import Options, Setting, Window, calibrate, record
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.eagle3 import read_drafts, unrolled_read
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from rdk_cuda.integrations.mtp import MtpDrafter
from rdk_cuda.recipes.inputs import pairs
from studies.multi_token_heads import peers_of
from studies.transformers_peers import generated, library_mtp

from ...tiny_models import save_tokenizer
from .heads import head_of, make, parts, publish

ROOT = Path(__file__).parents[3]

PROMPTS = [[5, 3, 1, 7, 2], [4], [1, 2, 3, 4, 5, 9, 1, 2, 3]]


def test_it_is_calibrated_as_it_drafts_and_no_head_is_copied(tmp_path: Any) -> None:
    target, network = parts("qwen3_5_text")
    drafter = MtpDrafter(network)
    own = target.model.get_output_embeddings().weight
    assert drafter.full_head[0].data_ptr() == own.data_ptr() == drafter._head[0].data_ptr()
    texts = [torch.randint(1, 61, (33,), generator=torch.manual_seed(n)).tolist() for n in range(6)]
    read = read_drafts(target, drafter, 3)
    recording = record(read, [Window(n, text) for n, text in enumerate(texts)])
    options = Options(virtual=4, dynamic=8)
    (found,) = calibrate(recording, drafter.full_head, texts, [Setting(0.25, 1.0)], options=options)
    found.method.drafter.save(tmp_path / "drafter.safetensors")
    pruned = PrunedDrafter.load(tmp_path / "drafter.safetensors")
    small = MtpDrafter(network, head=pruned.weight, head_bias=pruned.bias)
    assert small.full_head[0].data_ptr() == own.data_ptr()
    source = {"dynamic_tokens": pruned.dynamic_tokens, "vocabulary": pruned.vocabulary}
    generate = Generate(small, pruned.affinity, draft_length=3, **source)
    ids = torch.tensor(PROMPTS[:1])
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = target.model.generate(ids, **settings)
    assert torch.equal(target.model.generate(ids, **settings, custom_generate=generate), expected)


def test_the_tutorial_goes_from_a_directory_to_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make("qwen3_5_text", vocab_size=400, max_position_embeddings=512)
    publish(tmp_path / "Qwen3.5-4B", target, head_of(target), name="qwen3_5_text")
    save_tokenizer(tmp_path / "Qwen3.5-4B")
    for name, file in zip("abc", held_out_files(), strict=False):
        (tmp_path / f"{name}.txt").write_text(read_text(file)[:3000])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pairs, "TIMING_SECONDS", 0.0)
    page = (ROOT / "docs" / "tutorial.md").read_text().split("## Drafters that models bring")[1]
    (block,) = re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (code,) = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    calibration, evaluation, written = block.splitlines()
    assert "--keep 0.125" in calibration
    small = "--keep 0.75 --positions 300 --virtual 8 --dynamic 12"  # it keeps 257 special tokens
    for line in (f"{calibration} {small}", evaluation):
        assert main(line.removeprefix("python -m rdk_cuda ").split()) == 0
    assert written == "python write.py"
    names: dict[str, Any] = {}
    exec(code, names)
    assert sum(names["draft"].statistics.drafted) > 0
    assert (tmp_path / "evaluation" / "evaluation.json").is_file()


@pytest.mark.parametrize("head", [torch.ones(3, 32).long(), torch.ones(0, 32), torch.ones(3, 31)])
def test_heads_that_nothing_can_be_drafted_with_are_refused(head: torch.Tensor) -> None:
    _, network = parts("qwen3_5_text")
    with pytest.raises(ValueError, match=r"^MtpDrafter: head .*needs floats"):
        MtpDrafter(network, head=head)


@pytest.mark.parametrize("name", ["qwen3_5_text", "mimo", "ernie4_5_moe"])
def test_unrolled_it_reads_the_same_with_gradients(name: str) -> None:
    target, network = parts(name)
    ids = torch.tensor([[5, 3, 1, 9, 2, 4, 4, 1], [4, 2, 2, 9, 11, 5, 3, 6]])
    expected = read_drafts(target, MtpDrafter(network), 3)(ids)
    network.fc.requires_grad_()
    found = unrolled_read(target.model, network, 3)(ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad(found.hidden.sum(), network.fc.weight)
    assert bool(gradient.any())
    network.fc.requires_grad_(False)


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3"])
def test_it_drafts_what_the_library_s_own_generator_does(name: str) -> None:
    model = make(name, vocab_size=12)
    network = head_of(model)
    with library_mtp(model, network) as options:
        text, theirs = generated(model, PROMPTS[0], temperature=0, seed=0, tokens=40, **options)
    target = HuggingFaceModel(model, state_layers=(network.target_layers,))
    decoder = SpeculativeDecoder(target, MtpDrafter(network), draft_length=1)
    found = decoder.generate(PROMPTS[:1], max_new_tokens=40, temperature=0)
    assert found.tokens == [text]
    assert 0 < sum(found.statistics.accepted) == theirs.accepted
    assert found.statistics.target_passes == theirs.passes


def test_the_library_s_own_generator_refuses_targets_with_states() -> None:
    target, network = parts("qwen3_5_text", size=12)
    with ExitStack() as stack:
        rows = peers_of(stack, target.model, network, None, tokens=4)
    reasons = [row["refused"] for row in rows if isinstance(row, dict)]
    assert len(reasons) == 2
    assert all("not supported with stateful models" in reason for reason in reasons)
