"""A recording is what brute force gives, in bounded memory, however it was batched."""

from __future__ import annotations

import re

import pytest
import torch

from rdk_cuda import _ops
from rdk_cuda.decoding.models import Reading
from rdk_cuda.recipes.inputs.pairs import read_models
from rdk_cuda.recipes.record import likeliest_tokens, record, sampled_positions
from rdk_cuda.recipes.recording import Recording

from .bigram_recordings import (
    MEMORY,
    TEMPERATURES,
    V_T,
    D,
    W,
    Window,
    assert_same_bits,
    read,
    recorded,
    tensors_of,
    windows_of,
)


def test_every_mean_equals_brute_force() -> None:
    windows = windows_of()
    recording = recorded()
    ids = torch.tensor([token for window in windows for token in window.ids])
    logits, hidden = (tensor.double() for tensor in read(ids))
    probs = torch.stack([(logits / T).softmax(-1) for T in TEMPERATURES])

    assert recording.positions == len(ids)
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(recording.mean_probs, probs.mean(1), **close)
    torch.testing.assert_close(recording.mean_probs_at(0.6), probs[1].mean(0), **close)
    assert torch.equal(recording.counts, ids.bincount(minlength=V_T))
    moment = torch.einsum("ni,nj->ij", hidden, hidden) / len(ids)
    torch.testing.assert_close(recording.hidden_second_moment, moment, rtol=1e-14, atol=1e-14)


def test_at_one_of_several_temperatures_it_is_the_recording_of_that_one_alone() -> None:
    recording = recorded()
    for temperature in TEMPERATURES:
        assert_same_bits(recording.at(temperature), recorded(temperatures=(temperature,)))
    for name in ("at", "mean_probs_at"):
        with pytest.raises(ValueError, match=f"{name}: temperature is 0.5; recorded were 1.0, 0.6"):
            getattr(recording, name)(0.5)


def test_samples_of_a_text_that_fits_are_all_of_it() -> None:
    windows = windows_of()
    samples = recorded().samples
    ids = torch.tensor([token for window in windows for token in window.ids])
    logits, hidden = read(ids)

    assert len(samples) == len(ids)
    assert samples.targets.shape == (len(ids), V_T)  # m = V_t, so nothing is missing
    values, order = logits.sort(dim=1, descending=True, stable=True)
    assert torch.equal(samples.target_logits, values)
    assert torch.equal(samples.targets, order.int())
    assert torch.equal(samples.hidden, hidden)
    for temperature in TEMPERATURES:
        expected = (values.double() / temperature).softmax(-1).float()
        probs = samples.target_probs(temperature)
        torch.testing.assert_close(probs, expected, rtol=1e-5, atol=1e-9)
    contexts = [
        ([-1] * W + window.ids[: i + 1])[-W:] for window in windows for i in range(len(window.ids))
    ]
    assert samples.contexts.tolist() == contexts
    documents = [window.document for window in windows for _ in window.ids]
    assert samples.documents.tolist() == documents
    dtypes = {name: part.dtype for name, part in vars(samples).items() if torch.is_tensor(part)}
    assert dtypes == {
        "hidden": torch.float32,
        "targets": torch.int32,
        "target_logits": torch.float32,
        "log_normalizers": torch.float32,
        "contexts": torch.int32,
        "documents": torch.int64,
    }


def test_the_likeliest_are_in_order_and_ties_go_to_the_lowest_id() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-3, 4, (50, 30), generator=generator).float()  # almost only ties
    logits[:, ::4] = -torch.inf
    for count in (1, 7, 29, 30):
        ids, values = likeliest_tokens(logits, count)
        ordered, order = logits.sort(dim=1, descending=True, stable=True)
        assert torch.equal(ids, order[:, :count].int())
        assert torch.equal(values, ordered[:, :count])


def test_half_precision_and_logits_of_minus_infinity_are_recorded_as_they_are() -> None:
    def masked(ids: torch.Tensor, dtype: torch.dtype) -> Reading:
        logits, hidden = (tensor.bfloat16().to(dtype) for tensor in read(ids))
        logits[..., 5:] = -torch.inf
        return Reading(logits, hidden)

    recording = recorded(model=lambda ids: masked(ids, torch.bfloat16))
    assert_same_bits(recording, recorded(model=lambda ids: masked(ids, torch.float32)))
    assert not recording.mean_probs[:, 5:].any()
    assert not recording.samples.target_probs(0.6)[:, 5:].any()
    torch.testing.assert_close(recording.mean_probs.sum(1), torch.ones(2).double())


def test_batches_and_blocks_of_long_windows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks no sample, and means up to how float64 sums."""
    whole = recorded(samples=20)
    for shard in (1, 2, 100):
        monkeypatch.setattr("rdk_cuda.recipes.record.SHARD", shard)
        assert_same_bits(whole, recorded(samples=20))
    monkeypatch.setattr("rdk_cuda.recipes.record._BLOCK_ENTRIES", 3 * V_T)
    blocks = recorded(samples=20)
    assert torch.equal(whole.samples.contexts, blocks.samples.contexts)
    torch.testing.assert_close(whole.mean_probs, blocks.mean_probs, rtol=1e-6, atol=0)


# Which positions are sampled.


def _sampled(seeds: range, positions: int, size: int, keys_of=None) -> torch.Tensor:
    """`[seeds, positions]`: whether each is among the samples."""
    chosen = torch.zeros(len(seeds), positions)
    for row, seed in enumerate(seeds):
        places = torch.arange(positions)
        if keys_of is None:
            places = sampled_positions(seed, positions, size)
        else:
            places = keys_of(seed, places).topk(size, largest=False).indices
        chosen[row, places] = 1
    return chosen


def _is_uniform(chosen: torch.Tensor) -> bool:
    """Each position as often as any other, and neighbours as often as two at random.

    Five standard errors: false alarm below 1 in 10,000 for 61 statistics, and seeds are fixed.
    """
    trials, positions = chosen.shape
    share = chosen.mean()
    error = (share * (1 - share) / trials).sqrt()
    singles = (chosen.mean(0) - share) / error
    size = chosen[0].sum()
    pair = size * (size - 1) / (positions * (positions - 1))
    # Pairs of one trial are about independent: their covariances are of order 1 / positions.
    neighbours = (chosen[:, 1:] * chosen[:, :-1]).mean() - pair
    neighbours /= (pair * (1 - pair) / (trials * (positions - 1))).sqrt()
    return bool((singles.abs() < 5).all()) and abs(float(neighbours)) < 5


def test_every_position_is_as_likely_to_be_sampled_and_a_preference_would_be_noticed() -> None:
    """The controls prefer the start of a text, or neighbours."""

    def keys(seed: int, places: torch.Tensor) -> torch.Tensor:
        return _ops.step_keys(torch.full_like(places, seed), places)

    def sloped(seed: int, places: torch.Tensor) -> torch.Tensor:
        return (keys(seed, places) >> 8) + places * (1 << 49)

    def paired(seed: int, places: torch.Tensor) -> torch.Tensor:
        return keys(seed, places // 2) + places % 2

    assert _is_uniform(_sampled(range(300), 60, 12))
    for keys_of in (sloped, paired):
        assert not _is_uniform(_sampled(range(300), 60, 12, keys_of))


def test_samples_are_rows_of_the_whole_in_the_order_of_the_text() -> None:
    windows = [Window(i, [i]) for i in range(V_T)]  # so a context tells the position
    whole, some = recorded(windows).samples, recorded(windows, samples=9).samples
    places = some.contexts[:, -1].long()
    assert len(places.unique()) == 9
    assert torch.equal(places, places.sort().values)
    expected = whole.select(places)
    for name, part in vars(expected).items():
        assert name == "temperatures" or torch.equal(getattr(some, name), part), name
    another = recorded(windows, samples=9, seed=4).samples
    assert not torch.equal(another.documents, some.documents)
    assert len(recorded(windows, samples=0).samples) == 0


# Memory.


def _held(recording: Recording) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors_of(recording).values())


def test_what_is_kept_stays_within_the_memory_however_long_the_text_is() -> None:
    memory = 180_000
    short, long = (recorded(windows_of(n), memory=memory) for n in (100, 1000))
    assert len(short.samples) == len(long.samples) > 100
    assert _held(long) == _held(short) < memory * 3 / 4  # a quarter is for windows being read
    row = 4 * (D + 2 * V_T + len(TEMPERATURES) + W) + 3 * 8
    assert _held(long) > memory / 4 + len(long.samples) * row / 2


def test_too_little_memory_is_refused_with_how_much_would_do() -> None:
    with pytest.raises(
        ValueError, match=r"record: memory is 1,000 bytes; needs [\d,]+ for"
    ) as info:
        recorded(memory=1000)
    enough = int(re.search(r"needs ([\d,]+)", str(info.value))[1].replace(",", ""))
    assert len(recorded(memory=enough).samples) == sum(len(w.ids) for w in windows_of())
    with pytest.raises(ValueError, match="record: memory is"):
        recorded(memory=int(enough * 0.99))
    windows = windows_of(1000)
    assert len(recorded(windows, memory=200_000, samples=50).samples) == 50
    with pytest.raises(ValueError, match="for each of 5000 samples"):
        recorded(windows, memory=200_000, samples=5000)


def test_two_hugging_face_models_are_read_as_they_are() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": V_T, "intermediate_size": 16, "num_hidden_layers": 1}
    target, drafter = (
        transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, hidden_size=size, num_attention_heads=2)
        ).eval()
        for size in (16, 8)
    )
    windows = windows_of(4)
    recording = record(read_models(target, drafter), windows, memory=MEMORY)
    ids = torch.tensor([windows[0].ids])
    with torch.no_grad():
        logits = target(ids).logits[0]
        states = drafter(ids, output_hidden_states=True).hidden_states[-1][0]
    samples = recording.samples.select(torch.arange(len(windows[0].ids)))
    expected = logits.gather(1, samples.targets.long())
    torch.testing.assert_close(samples.target_logits, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(samples.hidden, states, rtol=1e-5, atol=1e-5)
    # What was recorded is what the drafter's head is applied to.
    drafted = torch.nn.functional.linear(samples.hidden, drafter.lm_head.weight)
    torch.testing.assert_close(drafted, drafter(ids).logits[0].detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"read_models: drafter.*training mode"):
        read_models(target, drafter.train())
