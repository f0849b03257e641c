"""Drafters that models bring along draft in vLLM, with a trimmed head, and nothing is lost."""

from __future__ import annotations

import os
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

from rdk_cuda.integrations.vllm.configuration import UnsupportedConfigurationError
from rdk_cuda.integrations.vllm.draft_head import DraftHead

from .engine import WORKER, Engine
from .exact import assert_joint
from .native_drafters import (
    SIZE,
    TORCHVISION,
    write_block_target,
    write_image_target,
    write_multi_token_target,
    write_trimmed,
)

PROMPTS = [[(7 * b + 3 * j) % SIZE for j in range(9 + b)] for b in range(4)]


@pytest.mark.parametrize(
    ("method", "trimmed"),
    [("mtp", False), ("mtp", True), ("dflash", True), ("draft_model", True)],
)
def test_what_comes_with_a_model_drafts_and_the_text_is_the_target_s(
    method: str, trimmed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, own = tmp_path / "target", tmp_path / "own"
    speculation = {"method": method, "num_speculative_tokens": 3}
    options: dict[str, Any] = {}
    if method == "mtp":
        model = write_multi_token_target(target)
    else:
        speculation["model"] = str(own)
        write = write_block_target if method == "dflash" else write_image_target
        model = write(target, own)
    if method == "draft_model":
        options["limit_mm_per_prompt"] = {"image": 0, "video": 0}
        if find_spec("torchvision") is None:
            _stand_in_for_torchvision(tmp_path / "packages", monkeypatch)
    write_trimmed(tmp_path / "drafter", model)
    engine = Engine(
        None,
        WORKER,
        tmp_path / "drafter" if trimmed else None,
        target,
        speculative_config=speculation,
        skip_tokenizer_init=True,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        **options,
    )
    assert engine.worker.model_config.uses_mrope == (method == "draft_model")
    with closing(engine):
        rows = engine.proposer.drafter.weight.shape[0]
        assert rows == (SIZE // 2 + 3 if trimmed else SIZE)
        greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
        said, accepted = engine.drafted(PROMPTS, greedy)
        assert accepted > 0.05
        for prompt, text in zip(PROMPTS, said, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
            assert logits.argmax(-1).tolist() == text
        params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True, detokenize=False)
        drawn = engine.tokens([PROMPTS[0]] * 512, params)
        assert_joint(drawn, PROMPTS[0], temperature=1.0, control=2.0, model=model)


def _stand_in_for_torchvision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and in those that vLLM starts to look at a model's class."""
    for name, source in TORCHVISION.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("transformers.utils.import_utils.is_torchvision_available", bool)
    monkeypatch.setattr("transformers.utils.is_torchvision_available", bool)


def test_a_head_inside_a_layer_reads_states_behind_its_norm() -> None:
    """As in DeepSeek's and GLM's families, where it is `model.layers[...].shared_head`."""
    rows = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(0))
    indices = SimpleNamespace(org_vocab_start_index=0, num_org_elements=SIZE)
    head = SimpleNamespace(shard_indices=indices, org_vocab_size=SIZE, weight=rows, tp_size=1)
    norm = torch.nn.RMSNorm(8)
    norm.head = head  # type: ignore[assignment]
    inner = SimpleNamespace(
        layers={"2": SimpleNamespace(shared_head=norm)},
        logits_processor=SimpleNamespace(logits_as_input=False, soft_cap=None, scale=1.0),
    )
    own = type("Own", (DraftHead,), {})()
    own.model, own._calibrated = SimpleNamespace(model=inner), None  # type: ignore[attr-defined]
    own.vllm_config = SimpleNamespace(  # type: ignore[attr-defined]
        additional_config={},
        model_config=SimpleNamespace(get_vocab_size=lambda: SIZE),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
    )
    own.fit_head()
    hidden = 9 * torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    logits, tokens, _ = own.score(hidden, lambda: hidden)
    assert tokens is None
    assert torch.equal(logits, norm(hidden) @ rows.T)
    assert not torch.allclose(logits, hidden @ rows.T)  # a control


def test_a_drafter_reads_its_own_tokens_in_the_place_of_the_target_s() -> None:
    class Compiled(torch.nn.Identity):
        def __call__(self, *args: object, **named: object) -> object: ...

    class Reads(torch.nn.Module):
        def forward(self, input_ids: object) -> object:
            return input_ids

    own, model = DraftHead(), Reads()
    limits = SimpleNamespace(max_num_batched_tokens=4, max_num_seqs=1)
    own.vllm_config = SimpleNamespace(scheduler_config=limits)  # type: ignore[attr-defined]
    own._read_as(model, torch.tensor([7, 7, 7]))
    first = model(input_ids=torch.tensor([2]))
    wrapped = object.__new__(BreakableCUDAGraphWrapper)
    wrapped.runnable = model
    own._read_as(wrapped, torch.tensor([2, -1, 0]))  # other ones, not those in a row
    read = wrapped(input_ids=torch.tensor([0, 1, 2, 0]))
    assert read.tolist() == [2, 0, 0, 2]
    # A CUDA graph of the layers, captured in V1, reads where the first call's tokens were.
    assert read.data_ptr() == first.data_ptr()
    with pytest.raises(UnsupportedConfigurationError, match="reads token ids"):
        model(None)
    with pytest.raises(UnsupportedConfigurationError, match="compiles all of Compiled"):
        own._read_as(Compiled(), torch.tensor([0]))
