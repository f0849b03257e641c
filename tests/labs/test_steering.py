"""Drafters that the target's states steer: drafting, reading to train them, files, decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from table_model import chi_square, continuations, joint_of, judge_by_another_q

transformers = pytest.importorskip("transformers", minversion="5.0")

import rdk_cuda  # noqa: E402
from rdk_cuda.decoding import DrafterTree, SpeculativeDecoder  # noqa: E402
from rdk_cuda.drafter import PrunedDrafter  # noqa: E402
from rdk_cuda.files import opened_tensors  # noqa: E402
from rdk_cuda.integrations.eagle3 import read_drafts  # noqa: E402
from rdk_cuda.integrations.huggingface import (  # noqa: E402
    Generate,
    HuggingFaceModel,
    SavedDrafterError,
    save_drafter,
)
from rdk_cuda.integrations.huggingface.saved_drafter import load_pruned  # noqa: E402
from rdk_cuda.integrations.sglang.plugin import _calibrated  # noqa: E402
from rdk_cuda.labs.steering import (  # noqa: E402
    SteeredModel,
    Steering,
    generate_from,
    load_steered,
    save_steered,
    steered_read,
)
from rdk_cuda.vocabulary import Vocabulary  # noqa: E402

from ..integrations.pair import SIZE, drafter, target  # noqa: E402
from ..integrations.test_saved_drafter import words  # noqa: E402

PROMPTS = [[5, 3, 1, 0, 2], [4], [1, 2, 3, 4, 5, 0, 1, 2, 3]]
SETTINGS: dict[str, Any] = {"max_new_tokens": 14, "seeds": [1, 2, 3]}


def steering(scale: float = 0.3, **of: Any) -> Steering:
    """Random weights, strong enough to change drafts; 0 as at the beginning of a training."""
    torch.manual_seed(3)
    made = Steering.between(target(**of), drafter(**of)).requires_grad_(False)
    made.out.weight.normal_(std=scale) if scale else None
    return made


def pair(scale: float = 0.3, **of: Any) -> tuple[HuggingFaceModel, SteeredModel]:
    drafts = SteeredModel(drafter(**of), steering(scale, **of))
    return HuggingFaceModel(target(**of), state_layers=drafts.state_layers), drafts


@contextmanager
def steered_by(model: Any, added: torch.Tensor) -> Iterator[None]:
    """`added`, `[layers, L, width]`, in the MLPs; written anew, as an oracle."""
    plain = [layer.mlp.forward for layer in model.model.layers]
    for layer, own in zip(model.model.layers, added, strict=True):
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp, own=own: mlp.down_proj(
            mlp.act_fn(mlp.gate_proj(x)) * (mlp.up_proj(x) + own)
        )
    try:
        yield
    finally:
        for layer, forward in zip(model.model.layers, plain, strict=True):
            layer.mlp.forward = forward


class Checked(SteeredModel):
    """Compares each row of logits with those of the sequence read at once, from verified tokens."""

    compared = 0

    def reset(self, batch_size: int) -> None:
        super().reset(batch_size)
        self.tokens: list[list[int]] = [[] for _ in range(batch_size)]
        self.by: list[list[int]] = [[] for _ in range(batch_size)]  # the state that steers a token

    def feed(self, tokens: Any, keep: Any) -> Any:
        if not any(self.observed):  # as a model is checked before it is used
            return super().feed(tokens, keep)
        lengths = self.lengths
        output = super().feed(tokens, keep)
        for b, (new, length) in enumerate(zip(tokens, lengths, strict=True)):
            prompt = len(PROMPTS[b]) if not length else 0
            self.tokens[b] = [*self.tokens[b][:length], *new]
            last = [self.observed[b] - 1] * (len(new) - prompt)
            self.by[b] = [*self.by[b][:length], *[-1] * prompt, *last]
            if keep[b]:
                expected = from_scratch(self, self.tokens[b], self.by[b])
                torch.testing.assert_close(output.logits[b, 0], expected, rtol=1e-3, atol=1e-3)
                self.compared += 1
        return output


@torch.no_grad()
def from_scratch(drafts: SteeredModel, tokens: list[int], by: list[int]) -> torch.Tensor:
    known = tokens[: max(by) + 1]
    said = target()(torch.tensor([known]), output_hidden_states=True).hidden_states
    states = torch.cat([said[at][0] for at in drafts.state_layers], -1)
    rows = drafts.steering(states)[:, by] * (torch.tensor(by) >= 0)[:, None]
    with steered_by(drafts.model, rows):
        return drafts.model(torch.tensor([tokens])).logits[0, -1]


def test_every_draft_is_what_the_last_verified_state_makes_of_the_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rdk_cuda.integrations.huggingface.slot_cache._PREFILL_COLUMNS", 3)
    reads, _ = pair()
    checked = Checked(drafter(), steering(0.1))
    decoder = SpeculativeDecoder(reads, checked, draft_length=3)
    statistics = decoder.generate(PROMPTS, **SETTINGS).statistics
    assert 0 < sum(statistics.accepted) < sum(statistics.drafted)
    assert checked.compared > 25


def test_after_a_rollback_of_several_steps_it_drafts_as_if_they_had_not_been() -> None:
    _, drafts = pair()
    states = torch.randn(2, 9, 3 * 32)
    ids = [[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]]

    def begun() -> None:
        drafts.reset(2)
        drafts.observe(list(states[:, :3]))
        drafts.feed([row[:4] for row in ids], [1, 1])

    begun()
    drafts.observe(list(states[:, 3:5]))
    drafts.feed([row[4:6] for row in ids], [1, 1])
    drafts.observe(list(states[:, 5:9]))
    drafts.feed([row[6:] for row in ids], [1, 1])
    drafts.rollback([4, 2])
    assert (drafts.observed, drafts.lengths) == ([4, 2], [4, 2])
    found = drafts.feed([ids[0][4:6], ids[1][2:6]], [1, 1]).logits
    begun()
    drafts.rollback([4, 2])
    drafts.observe([states[0, 3:4], states[1, 2:2]])
    torch.testing.assert_close(found, drafts.feed([ids[0][4:6], ids[1][2:6]], [1, 1]).logits)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_drafts_trees(temperature: float) -> None:
    reads, drafts = pair(0.1)
    affinity = rdk_cuda.Affinity.intersection(Vocabulary.identity(SIZE))
    decoder = SpeculativeDecoder(reads, proposer=DrafterTree(drafts, affinity, passes=3))
    result = decoder.generate(PROMPTS, temperature=temperature, **SETTINGS)
    assert sum(result.statistics.accepted) > 0
    if temperature == 0:
        alone = SpeculativeDecoder(HuggingFaceModel(target()), draft_length=0)
        assert result.tokens == alone.generate(PROMPTS, temperature=0, **SETTINGS).tokens


@pytest.mark.parametrize("draft_length", [1, 3])
def test_what_is_trained_on_is_what_is_drafted(draft_length: int) -> None:
    drafts = SteeredModel(drafter(), steering(), return_hidden=True)
    reads = HuggingFaceModel(target(), state_layers=drafts.state_layers)
    ids = torch.randint(SIZE, (2, 12), generator=torch.Generator().manual_seed(5))
    expected = read_drafts(reads, drafts, draft_length)(ids)
    with torch.no_grad():
        found = steered_read(target(), drafter(), steering(), draft_length)(ids)
        behind = steered_read(target(), drafter(), steering(), 3, prompt_length=5)(ids)
        plain = steered_read(target(), drafter(), steering(0), 3)(ids)
        whole = steered_read(target(), drafter(), steering(), 3, prompt_length=99)(ids)
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-3, atol=1e-3)
    assert torch.equal(whole.hidden, plain.hidden)
    assert torch.equal(behind.hidden[:, :4], plain.hidden[:, :4])
    assert not torch.equal(behind.hidden[:, 4], plain.hidden[:, 4])
    with pytest.raises(ValueError, match="draft_length is 0 and prompt_length 1"):
        steered_read(target(), drafter(), steering(), 0)


def saved(folder: Path, made: Steering) -> Path:
    head = drafter().get_output_embeddings().weight.detach(), None
    kept = PrunedDrafter.plain(head, Vocabulary(range(5, 50), SIZE))
    save_steered(folder / "drafter", drafter(), words(), kept, {}, made)
    return folder / "drafter"


def test_a_saved_drafter_is_steered_when_labs_load_it_and_refused_by_the_core(
    tmp_path: Path,
) -> None:
    made = steering()
    directory = saved(tmp_path, made)
    *_, loaded = load_steered(directory)
    assert loaded.state_layers == made.state_layers
    for name, weight in made.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    made.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (
        directory / "steering.safetensors"
    ).read_bytes()
    generate = generate_from(directory, draft_length=3)
    assert isinstance(generate.drafter, SteeredModel)
    ids = torch.tensor([[5, 3, 1, 0, 2], [4, 4, 4, 4, 4]])
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 60}
    assert torch.equal(
        target().generate(ids, **options, custom_generate=generate),
        target().generate(ids, **options),
    )
    assert sum(generate.statistics.drafted) > 0
    line = rf"needs to be read by `rdk_cuda\.labs\.steering\.generate_from\('{directory}'\)`"
    for read in (in_sglang, load_pruned, Generate.from_directory):
        with pytest.raises(SavedDrafterError, match=line):
            read(directory)
    save_drafter(directory, drafter(), words(), load_steered(directory)[1], {}, overwrite=True)
    assert load_pruned(directory)[0].vocabulary == in_sglang(directory).vocabulary
    assert not isinstance(Generate.from_directory(directory).drafter, SteeredModel)
    with pytest.raises(FileNotFoundError):
        load_steered(directory)


def in_sglang(directory: Path) -> Any:
    """As SGLang's plugin reads it."""
    return _calibrated(
        SimpleNamespace(speculative_token_map=directory, speculative_draft_model_path=None)
    )


def damaged(name: str, change: Callable[[torch.Tensor], torch.Tensor], **facts: str) -> Any:
    def damage(path: Path) -> None:
        tensors = load_file(path)
        with opened_tensors(path) as file:
            metadata = {**file.metadata(), **facts}
        save_file({**tensors, name: change(tensors[name]).contiguous()}, path, metadata)

    return damage


def same(weight: torch.Tensor) -> torch.Tensor:
    return weight


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "not a complete safetensors"),
        (damaged("mix.bias", same, format="rdk_cuda.affinity"), "of format"),
        (damaged("mix.bias", same, format_version="2"), "newer"),
        (damaged("mix.weight", lambda w: w[:, 1:]), r"to be \[d, 3 d\]"),
        (damaged("mix.weight", lambda w: w[:0]), r"to be \[d, 3 d\]"),
        (damaged("norm.bias", lambda w: w[None]), r"to be \[d, 3 d\]"),
        (damaged("norm.bias", lambda w: w.half()), "float16 .*; needs"),
        (damaged("out.weight", lambda w: w[1:]), "a multiple of 2"),
        (damaged("out.weight", lambda w: w * torch.inf), "is not finite"),
        (damaged("mix.bias", same, layers="7"), "a multiple of 7"),
        (damaged("mix.bias", same, layers="0"), "needs three layers"),
        (damaged("mix.bias", same, state_layers="1,2"), "needs three layers"),
        (damaged("mix.bias", same, state_layers="1,2,-3"), "needs three layers"),
        (damaged("mix.bias", same, state_layers="1,2," + "9" * 50), "needs three layers"),
        (damaged("mix.bias", same, layers="1"), "needs the drafter that it was trained for"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Any, says: str) -> None:
    directory = saved(tmp_path, steering())
    damage(directory / "steering.safetensors")
    with pytest.raises(SavedDrafterError, match=says):
        generate_from(directory)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    other = Steering((0, 1, 2), state_size=32, layers=3, width=48)
    for use in (
        lambda: SteeredModel(drafter(), other),
        lambda: steered_read(target(), drafter(), other, 3),
        lambda: saved(tmp_path, other),
    ):
        with pytest.raises(ValueError, match="needs the drafter that it was trained for"):
            use()
    deeper = Generate(
        SteeredModel(drafter(), Steering((4, 17, 30), state_size=32, layers=2, width=48))
    )
    with pytest.raises(
        ValueError, match=r"state_layers is \[4, 17, 30\]; needs numbers from 0 to 3"
    ):
        target().generate(torch.tensor([[1, 2]]), max_new_tokens=2, custom_generate=deeper)
    _, drafts = pair()
    drafts.reset(1)
    with pytest.raises(ValueError, match=r"needs 1 sequences.* a width of 96"):
        drafts.observe([torch.zeros(2, 32)])
    with pytest.raises(SavedDrafterError, match="needs finite numbers"):
        steering(float("inf")).save(tmp_path / "steering.safetensors")
    with pytest.raises(ValueError, match=r"state_layers=drafter\.state_layers"):
        SpeculativeDecoder(HuggingFaceModel(target()), drafts).generate(PROMPTS, max_new_tokens=3)


def p_value(samples: int = 5_000) -> float:
    """Chi-square of three tokens; fixed seeds. A right decoder fails `> 1e-4` once in 10,000."""
    of: dict[str, Any] = {"size": 6, "spread": 8.0}
    reads, drafts = pair(0.3, **of)
    decoder = SpeculativeDecoder(reads, drafts, draft_length=2)

    counts = continuations(lambda: decoder, [2, 4], 3, samples, further=1)
    return chi_square(counts, joint_of(target(**of), [2, 4], 3))


def test_samples_have_the_target_s_distribution() -> None:
    assert p_value() > 1e-4


def test_control_drafts_judged_by_another_q_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by_another_q(monkeypatch)
    assert p_value() < 1e-6
