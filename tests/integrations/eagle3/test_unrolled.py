"""A text is read as it is drafted: what is recorded is what the decoder's drafter computes."""

from typing import Any

import pytest
import torch

from rdk_cuda.calibration import Window
from rdk_cuda.integrations.eagle3 import Eagle3Drafter, read_drafts, unrolled_read
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.record import record

from ..test_state_drafters import eagle
from .test_drafter import LAYERS, pair

IDS = torch.tensor([[5, 3, 1, 0, 2, 4, 4, 1], [4, 2, 2, 9, 11, 5, 3, 0]])


@pytest.mark.parametrize("draft_length", [1, 3])
@pytest.mark.parametrize("variant", [{}, {"norm_output": True, "norm_before_residual": True}])
def test_each_position_is_of_its_place_in_a_draft(
    draft_length: int, variant: dict[str, Any]
) -> None:
    made = eagle(12, **variant)
    target, drafter = made.target, made.drafter
    reading = read_drafts(target, drafter, draft_length)(IDS)
    plain = target.model(IDS).logits
    torch.testing.assert_close(reading.target_logits, plain[:, 1:], rtol=1e-4, atol=1e-4)
    for b, text in enumerate(IDS.tolist()):
        for at, hidden in enumerate(reading.hidden[b]):
            place = at % draft_length
            known, drafted = text[: at + 2 - place], text[at + 2 - place : at + 2]
            found = hidden @ drafter.network.lm_head.weight.T
            torch.testing.assert_close(found, made.row(known, drafted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("draft_length", [1, 3, 4])
@pytest.mark.parametrize("variant", [{}, {"norm_output": True, "norm_before_residual": True}])
def test_unrolled_it_reads_the_same_with_gradients(
    draft_length: int, variant: dict[str, Any]
) -> None:
    target, drafter, _ = pair(**variant)
    expected = read_drafts(target, drafter, draft_length)(IDS)
    drafter.network.fc.requires_grad_()
    found = unrolled_read(target.model, drafter.network, draft_length)(IDS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for at in range(found.hidden.shape[1]):
        (gradient,) = torch.autograd.grad(
            found.hidden[:, at].sum(), drafter.network.fc.weight, retain_graph=True
        )
        assert bool(gradient.any()), at
    with pytest.raises(ValueError, match="unrolled_read: draft_length is 0; needs at least 1"):
        unrolled_read(target.model, drafter.network, 0)


def test_it_is_recorded_from_the_second_token_on() -> None:
    target, drafter, _ = pair()
    windows = [Window(0, IDS[0].tolist()), Window(1, IDS[1, :5].tolist())]
    read = read_drafts(target, drafter, 3)
    recording = record(read, windows, temperatures=[1.0, 0.5], context=4)
    assert recording.positions == len(recording.samples) == 7 + 4
    expected = torch.cat([IDS[0, 1:], IDS[1, 1:5]]).bincount(minlength=20)
    assert torch.equal(recording.counts, expected)
    torch.testing.assert_close(recording.samples.hidden[:7], read(IDS[:1]).hidden[0])
    assert recording.samples.contexts[0].tolist() == [-1, -1, 5, 3]
    assert recording.samples.contexts[7].tolist() == [-1, -1, 4, 2]
    with pytest.raises(ValueError, match=r"window 0 .* has 1 tokens; needs at least 2"):
        record(read, [Window(0, [3])])


def test_what_returns_no_states_is_refused() -> None:
    target, drafter, _ = pair()
    with pytest.raises(ValueError, match="draft_length is 0; needs at least 1"):
        read_drafts(target, drafter, 0)
    silent = HuggingFaceModel(target.model)
    with pytest.raises(ValueError, match=r"state_layers=drafter\.state_layers"):
        read_drafts(silent, Eagle3Drafter(drafter.network, LAYERS), 2)(IDS)
