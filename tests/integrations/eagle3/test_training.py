"""`python -m examples.eagle3` trains a drafter that loads, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from examples.eagle3 import __main__ as command
from examples.eagle3.distillation import Distillation, sampled_columns
from rdk_cuda.integrations.eagle3 import read_checkpoint
from tests.tiny_llamas import llama


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of random weights that knows 30 words, and a text of them."""
    folder = tmp_path_factory.mktemp("eagle3")
    llama(30, seed=0, layers=8, initializer_range=0.4).save_pretrained(folder / "target")
    words = {f"w{i}": i for i in range(30)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "target")
    ids = torch.randint(0, 30, (2000,), generator=torch.Generator().manual_seed(1))
    (folder / "text.txt").write_text(" ".join(f"w{i}" for i in ids.tolist()))
    return folder


def train(place: Path, name: str, *options: str, steps: int = 30) -> Path:
    command.main(
        [
            *("--target", str(place / "target"), "--text", str(place / "text.txt")),
            *("--out", str(place / name), "--work", str(place / f"{name}-work")),
            *("--steps", str(steps), "--context", "16", "--batch", "4", *options),
        ]
    )
    return place / name


@pytest.mark.parametrize("options", [("--draft-size", "12", "--own-head"), ()])
def test_it_learns_and_loads(
    place: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    take = command.Training._take_step

    def watched(self: Any) -> float:
        losses.append(take(self))
        return losses[-1]

    monkeypatch.setattr(command.Training, "_take_step", watched)
    folder = train(place, f"drafter{len(options)}", *options, steps=150)
    assert sum(losses[-20:]) < sum(losses[:20]) - 20 * 0.05
    target = LlamaForCausalLM.from_pretrained(place / "target").eval()
    checkpoint = read_checkpoint(folder, target)
    assert len(checkpoint.vocabulary.draft_ids) == (12 if options else 30)
    same = torch.equal(
        checkpoint.network.lm_head.weight,
        target.get_output_embeddings().weight[checkpoint.vocabulary.draft_ids],
    )
    assert same == (not options)


def test_a_stopped_run_goes_on_to_the_same_weights(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (train(place, "whole") / "model.safetensors").read_bytes()
    take, taken = command.Training._take_step, 0

    def interrupted(self: Any) -> float:
        nonlocal taken
        taken += 1
        if taken == 11:
            raise KeyboardInterrupt
        return take(self)

    with monkeypatch.context() as patch:
        patch.setattr(command.Training, "_take_step", interrupted)
        with pytest.raises(SystemExit, match="stopped after step 10; the same command goes on"):
            train(place, "stopped")
    assert (train(place, "stopped") / "model.safetensors").read_bytes() == whole
    with pytest.raises(ValueError, match="another recipe, vocabulary or text"):
        train(place, "stopped", "--draft-size", "7")


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_the_gradient_is_that_of_the_plain_expression(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    torch.manual_seed(3)
    states, head, final, own = (torch.randn(*n, 8) for n in ((2, 150), (20,), (150,), (20,)))
    weights, log_counts = torch.rand(2, 150), torch.rand(20)
    inputs = [states.bfloat16().float().requires_grad_(), head.bfloat16().float().requires_grad_()]
    rest = final.bfloat16().float(), own.bfloat16().float()
    loss = Distillation.apply(*inputs, *rest, weights, log_counts)  # type: ignore[no-untyped-call]
    expected = (rest[0] @ rest[1].T + log_counts).softmax(-1)
    log_q = (inputs[0] @ inputs[1].T + log_counts).log_softmax(-1)
    plain = -(expected * log_q * weights[:, :, None]).sum()
    torch.testing.assert_close(loss, plain, rtol=0.01, atol=0.01)
    got, right = (torch.autograd.grad(value, inputs) for value in (loss, plain))
    for ours, theirs in zip(got, right, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.02


def test_sampled_columns_stand_for_the_whole_head() -> None:
    generator = torch.Generator().manual_seed(4)
    order, values = torch.randperm(1000, generator=generator), torch.rand(1000).double()
    present = torch.tensor([7, 500])
    sums = []
    for _ in range(2000):
        columns, log_counts = sampled_columns(order, present, 100, generator)
        assert len(columns.unique()) == len(columns) <= 102
        assert bool(torch.isin(torch.cat([order[:75], present]), columns).all())
        sums.append(float((values[columns] * log_counts.exp()).sum()))
    spread = torch.tensor(sums).std() / 2000**0.5
    assert abs(sum(sums) / 2000 - float(values.sum())) < 5 * spread
    every, log_counts = sampled_columns(order, present, 1000, generator)
    assert torch.equal(every, torch.arange(1000))
    assert not bool(log_counts.any())
