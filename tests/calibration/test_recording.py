"""A recording is what brute force gives, in bounded memory, however it was batched or stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import safetensors.torch
import torch

from rdk_cuda.calibration import recording_file
from rdk_cuda.calibration.reading import Reading, read_models
from rdk_cuda.calibration.recording import Recording, RecordingError, record
from rdk_cuda.calibration.reservoir import Reservoir, likeliest_tokens, random_keys
from tests import interruptible

V_T, D, W = 40, 3, 5
TEMPERATURES = (1.0, 0.6)
MEMORY = 1 << 20
READS = 7  # of `_windows()`, whose neighbours of one length are read together


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """Everything here is tiny."""


class Window(NamedTuple):
    document: int
    ids: list[int]


def _table(size: int) -> torch.Tensor:
    return torch.randn(V_T, size, generator=torch.Generator().manual_seed(size)) * 3


def read(ids: torch.Tensor) -> Reading:
    """A bigram model and a drafter whose state is a row of a table."""
    return Reading(_table(V_T)[ids], _table(D)[ids])


def _windows(count: int = 13) -> list[Window]:
    """Neighbours of equal and of different lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = [(7, 7, 7, 4, 12)[i % 5] for i in range(count)]
    return [
        Window(i // 2, torch.randint(V_T, (length,), generator=generator).tolist())
        for i, length in enumerate(lengths)
    ]


def _record(windows=None, model=read, **changes) -> Recording:
    arguments = {"temperatures": TEMPERATURES, "memory": MEMORY, "context": W, "seed": 3}
    return record(model, _windows() if windows is None else windows, **(arguments | changes))


def _tensors(recording: Recording) -> dict[str, torch.Tensor]:
    both = {**vars(recording), **vars(recording.samples)}
    return {name: value for name, value in both.items() if isinstance(value, torch.Tensor)}


def _assert_same_bits(one: Recording, other: Recording) -> None:
    assert one.temperatures == other.temperatures == one.samples.temperatures
    for name, tensor in _tensors(one).items():
        assert torch.equal(tensor, _tensors(other)[name]), name
    assert len(_tensors(one)) == 10


def test_every_mean_equals_brute_force() -> None:
    windows = _windows()
    recording = _record()
    ids = torch.tensor([token for window in windows for token in window.ids])
    logits, hidden = (tensor.double() for tensor in read(ids))
    probs = torch.stack([(logits / T).softmax(-1) for T in TEMPERATURES])

    assert recording.positions == len(ids)
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close(recording.mean_probs, probs.mean(1), **close)
    torch.testing.assert_close(recording.mean_probs_at(0.6), probs[1].mean(0), **close)
    torch.testing.assert_close(recording.mean_squares, probs[0].square().mean(0), **close)
    torch.testing.assert_close(recording.variance, probs[0].var(0, correction=0), **close)
    assert torch.equal(recording.counts, ids.bincount(minlength=V_T))
    moment = torch.einsum("ni,nj->ij", hidden, hidden) / len(ids)
    torch.testing.assert_close(recording.hidden_second_moment, moment, rtol=1e-14, atol=1e-14)


def test_samples_of_a_text_that_fits_are_all_of_it() -> None:
    windows = _windows()
    samples = _record().samples
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
    dtypes = {name: tensor.dtype for name, tensor in vars(samples).items() if name in _tensors_of()}
    assert dtypes == _tensors_of()


def _tensors_of() -> dict[str, torch.dtype]:
    return {name: dtype for name, (dtype, _) in recording_file.SAMPLE_LAYOUT.items()}


def test_the_likeliest_are_in_order_and_ties_go_to_the_lowest_id() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-3, 4, (50, 30), generator=generator).float()  # almost only ties
    logits[:, ::4] = -torch.inf
    for count in (1, 7, 29, 30):
        ids, values = likeliest_tokens(logits, count)
        ordered, order = logits.sort(dim=1, descending=True, stable=True)
        assert torch.equal(ids, order[:, :count].int())
        assert torch.equal(values, ordered[:, :count])


def test_logits_in_half_precision_are_recorded_as_their_float32() -> None:
    def read_half(ids: torch.Tensor) -> Reading:
        return Reading(*(tensor.bfloat16() for tensor in read(ids)))

    def read_rounded(ids: torch.Tensor) -> Reading:
        return Reading(*(tensor.bfloat16().float() for tensor in read(ids)))

    _assert_same_bits(_record(model=read_half), _record(model=read_rounded))


def test_tokens_with_logits_of_minus_infinity_have_probability_zero() -> None:
    def masked(ids: torch.Tensor) -> Reading:
        logits, hidden = read(ids)
        logits[..., 5:] = -torch.inf
        return Reading(logits, hidden)

    recording = _record(model=masked)
    assert not recording.mean_probs[:, 5:].any()
    assert not recording.samples.target_probs(0.6)[:, 5:].any()
    torch.testing.assert_close(recording.mean_probs.sum(1), torch.ones(2).double())


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_batches_do_not_change_a_bit(batch_size: int) -> None:
    _assert_same_bits(_record(samples=20), _record(samples=20, batch_size=batch_size))


def test_a_long_window_is_worked_through_in_blocks_that_do_not_change_its_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = _record(samples=20)
    monkeypatch.setattr("rdk_cuda.calibration.running._BLOCK_ENTRIES", 3 * V_T)
    blocks = _record(samples=20)
    assert torch.equal(whole.samples.contexts, blocks.samples.contexts)
    torch.testing.assert_close(whole.mean_probs, blocks.mean_probs, rtol=1e-6, atol=0)


# Which positions are sampled.


def _sampled(seeds: range, positions: int, size: int, keys_of=random_keys) -> torch.Tensor:
    """`[seeds, positions]`: whether each is among the samples; offered in pieces of 7."""
    chosen = torch.zeros(len(seeds), positions)
    for row, seed in enumerate(seeds):
        reservoir = Reservoir(size, 1, 1, 1, (1.0,))
        for places in torch.arange(positions).split(7):
            keys = keys_of(seed, places)
            taken, rows = reservoir.choose(keys)
            reservoir.put(rows, keys=keys[taken], positions=places[taken])
        assert reservoir.filled == size
        chosen[row, reservoir.rows["positions"]] = 1
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


def test_every_position_is_as_likely_to_be_sampled() -> None:
    assert _is_uniform(_sampled(range(300), 60, 12))


def test_a_reservoir_that_prefers_the_start_would_be_noticed() -> None:
    def sloped(seed: int, places: torch.Tensor) -> torch.Tensor:
        return (random_keys(seed, places) >> 8) + places * (1 << 49)

    assert not _is_uniform(_sampled(range(300), 60, 12, sloped))


def test_a_reservoir_that_takes_neighbours_together_would_be_noticed() -> None:
    def paired(seed: int, places: torch.Tensor) -> torch.Tensor:
        return random_keys(seed, places // 2) + places % 2

    assert not _is_uniform(_sampled(range(300), 60, 12, paired))


def test_samples_are_rows_of_the_whole_in_the_order_of_the_text() -> None:
    windows = [Window(i, [i]) for i in range(V_T)]  # so a context tells the position
    whole, some = _record(windows).samples, _record(windows, samples=9, likeliest=4).samples
    places = some.contexts[:, -1].long()
    assert len(places.unique()) == 9
    assert torch.equal(places, places.sort().values)
    expected = whole.select(places)
    assert torch.equal(some.hidden, expected.hidden)
    assert torch.equal(some.targets, expected.targets[:, :4])
    assert torch.equal(some.target_logits, expected.target_logits[:, :4])
    assert torch.equal(some.log_normalizers, expected.log_normalizers)
    assert torch.equal(some.documents, expected.documents)
    another = _record(windows, samples=9, seed=4).samples
    assert not torch.equal(another.documents, some.documents)


def test_no_samples_at_all_are_fine() -> None:
    recording = _record(samples=0)
    assert len(recording.samples) == 0
    assert torch.equal(recording.mean_probs, _record().mean_probs)


# Memory.


def _held(recording: Recording) -> int:
    return sum(t.untyped_storage().nbytes() for t in _tensors(recording).values())


def test_what_is_kept_stays_within_the_memory_however_long_the_text_is() -> None:
    memory = 180_000
    short, long = (_record(_windows(n), memory=memory) for n in (100, 1000))
    assert len(short.samples) == len(long.samples) > 100
    assert _held(long) == _held(short) < memory * 3 / 4  # a quarter is for windows being read
    row = 4 * (D + 2 * V_T + len(TEMPERATURES) + W) + 3 * 8
    assert _held(long) > memory / 4 + len(long.samples) * row / 2


def test_batches_are_cut_to_a_quarter_of_the_memory() -> None:
    largest = 0

    def watched(ids: torch.Tensor) -> Reading:
        nonlocal largest
        reading = read(ids)
        largest = max(largest, sum(tensor.nbytes for tensor in reading))
        return reading

    windows = [Window(0, [1] * 50)] * 40
    _record(windows, watched, memory=400_000, batch_size=40)
    window = 4 * 50 * (V_T + D)
    assert 100_000 - window < largest <= 100_000


def test_too_little_memory_is_refused_with_how_much_would_do() -> None:
    with pytest.raises(
        ValueError, match=r"record: memory is 1,000 bytes; needs [\d,]+ for"
    ) as info:
        _record(memory=1000)
    enough = int(re.search(r"needs ([\d,]+)", str(info.value))[1].replace(",", ""))
    assert len(_record(memory=enough).samples) == sum(len(w.ids) for w in _windows())
    with pytest.raises(ValueError, match="record: memory is"):
        _record(memory=int(enough * 0.99))


def test_asking_for_more_samples_than_memory_holds_is_refused() -> None:
    windows = _windows(1000)
    assert len(_record(windows, memory=200_000, samples=50).samples) == 50
    with pytest.raises(ValueError, match="for each of 5000 samples"):
        _record(windows, memory=200_000, samples=5000)


# Interruptions.


@pytest.fixture
def always_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state after every batch, where `save_every` is 0, however long it takes."""
    monkeypatch.setattr("rdk_cuda.calibration.recording_state._SLOWDOWN", 0)


class StopReading(Exception):  # noqa: N818
    pass


def _reads_before_stopping(count: int):
    def stopping(ids: torch.Tensor) -> Reading:
        nonlocal count
        if ids.numel() > 1:
            count -= 1
            if count < 0:
                raise StopReading
        return read(ids)

    return stopping


@pytest.mark.parametrize("stops", [(0,), (1,), (4, 2), (6,)])
@pytest.mark.usefixtures("always_written")
def test_an_interrupted_recording_goes_on_to_the_same_bits(
    tmp_path: Path, stops: tuple[int, ...]
) -> None:
    state = tmp_path / "state"
    again = {"samples": 20, "state": state, "save_every": 0.0}
    for reads in stops:
        with pytest.raises(StopReading):
            _record(model=_reads_before_stopping(reads), **again)
    recording = _record(model=_reads_before_stopping(READS - sum(stops)), **again)
    _assert_same_bits(recording, _record(samples=20))
    assert os.listdir(tmp_path) == ["state"]


def test_a_state_that_is_complete_is_read_and_nothing_else(tmp_path: Path) -> None:
    first = _record(samples=20, state=tmp_path / "state")
    nothing = _reads_before_stopping(0)
    _assert_same_bits(first, _record(model=nothing, samples=20, state=tmp_path / "state"))


@pytest.mark.usefixtures("always_written")
def test_the_state_is_left_alone_between_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    monkeypatch.setattr(recording_file, "write", lambda path, *_: written.append(path))
    _record(state=tmp_path / "state")
    assert written == [tmp_path / "state"]  # at the end
    _record(state=tmp_path / "state", save_every=0.0)
    assert len(written) == 1 + READS


PROGRAM = """
import os, sys, time
from rdk_cuda.calibration import recording_state
from tests.calibration.test_recording import _record, read
state, where = sys.argv[1:]
count = 0

def slow(ids):
    global count
    count += ids.numel() > 1
    if where == "reading" and count == 4:
        print("now", flush=True)
        time.sleep(100)
    return read(ids)

def replace(beside, path):
    if where == "renaming" and count == 4:
        print("now", flush=True)
        time.sleep(100)
    rename(beside, path)

rename, os.replace = os.replace, replace
recording_state._SLOWDOWN = 0
_record(model=slow, samples=20, state=state, save_every=0.0)
"""


@pytest.mark.parametrize(
    ("where", "number"),
    [("reading", signal.SIGKILL), ("renaming", signal.SIGKILL), ("renaming", signal.SIGINT)],
)
def test_a_killed_recording_goes_on_to_the_same_bits(
    tmp_path: Path, where: str, number: signal.Signals
) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", PROGRAM, str(state), where]
    process = interruptible.start(command, Path(__file__).parents[2])
    try:
        assert process.stdout.readline() == "now\n", process.stderr.read()
        process.send_signal(number)
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode != 0
    left = ["state", "state.partial"] if (where, number) == ("renaming", 9) else ["state"]
    assert sorted(os.listdir(tmp_path)) == left

    resumed = _reads_before_stopping(READS - 3)  # three were kept
    recording = _record(model=resumed, samples=20, state=state)
    _assert_same_bits(recording, _record(samples=20))
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperatures": (1.0,)}, r"temperatures was \[1.0, 0.6\] and is \[1.0\]"),
        ({"samples": 19}, "samples was 20 and is 19"),
        ({"likeliest": 7}, "likeliest was 40 and is 7"),
        ({"context": 6}, "context was 5 and is 6"),
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"models": "b"}, "models was 'a' and is 'b'"),
        ({"windows": _windows(12)}, "text was '13 windows, 95 tokens.* is '12 windows, 88 tokens"),
        ({"windows": [Window(9, w.ids) for w in _windows()]}, "text was '13 windows.*is '13"),
    ],
)
def test_a_state_of_other_arguments_is_refused_and_says_which(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    arguments = {"samples": 20, "state": tmp_path / "state", "models": "a"}
    _record(**arguments)
    with pytest.raises(RecordingError, match=f"another recording: {sentence}.*delete the file"):
        _record(**(arguments | changes))
    _record(**arguments, batch_size=1)  # is free to change


@pytest.mark.usefixtures("always_written")
def test_progress_is_shown_over_what_is_left_to_read(tmp_path: Path) -> None:
    seen = []

    def each(items, description):
        seen.append((description, len(items)))
        yield from items

    arguments = {"state": tmp_path / "state", "save_every": 0.0, "each": each}
    with pytest.raises(StopReading):
        _record(model=_reads_before_stopping(4), **arguments)
    _record(**arguments)
    reading = "Calibrating: reading text"
    assert seen == [(reading, READS), (reading, READS - 4)]


# Files.


def test_a_saved_recording_comes_back_to_the_bit(tmp_path: Path) -> None:
    recording = _record(samples=20, likeliest=7)
    recording.save(tmp_path / "recording.safetensors")
    _assert_same_bits(Recording.load(tmp_path / "recording.safetensors"), recording)
    assert os.listdir(tmp_path) == ["recording.safetensors"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, recording = tmp_path / "r", _record(samples=20)
    recording.save(path)
    monkeypatch.setattr(os, "replace", lambda *_: exec("raise OSError('disk full')"))
    with pytest.raises(OSError, match="disk full"):
        _record(samples=19).save(path)
    assert os.listdir(tmp_path) == ["r"]
    _assert_same_bits(Recording.load(path), recording)


def _altered(path: Path, **changes: object) -> None:
    """The file, with tensors changed by functions or dropped, and `about` or header entries."""
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        elif callable(change):
            tensors[name] = change(tensors.get(name))
        elif name in ("format", "format_version"):
            metadata[name] = change
        else:
            metadata["about"] = json.dumps(json.loads(metadata["about"]) | {name: change})
    safetensors.torch.save_file(tensors, path, metadata)


def _with(value: float):
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return change


BAD_FILES = [
    ({"format": "other"}, "format 'other'; needs 'rdk_cuda.recording"),
    ({"format_version": "2"}, "format version '2'; this rdk_cuda reads version 1"),
    ({"hidden": None}, r"lacks \['hidden'\] and has unknown \[\]"),
    ({"more": lambda _: torch.ones(1)}, r"lacks \[\] and has unknown \['more'\]"),
    ({"temperatures": [1.0, 0.0]}, "does not tell at which temperatures"),
    ({"temperatures": ["1", 0.6]}, "does not tell at which temperatures"),
    ({"temperatures": 1.0}, "does not tell at which temperatures"),
    ({"hidden": lambda x: x.double()}, "hidden is torch.float64"),
    ({"hidden": lambda x: x[1:].clone()}, r"has shape \[(19|20).*as the rest of the file"),
    ({"targets": lambda x: x[:, 1:].clone()}, "as the rest of the file"),
    ({"hidden": _with(torch.nan)}, "hidden has the value nan"),
    ({"target_logits": _with(torch.inf)}, "target_logits has the value inf"),
    ({"log_normalizers": _with(-torch.inf)}, "log_normalizers has the value -inf"),
    ({"targets": _with(V_T)}, f"targets has the value {V_T}; needs values in \\[0, {V_T - 1}\\]"),
    ({"contexts": _with(-2)}, "contexts has the value -2"),
    ({"counts": _with(-1)}, "counts has the value -1"),
]
BAD_RECORDINGS = [
    ({"temperatures": [1.0]}, r"mean_probs has shape \[2, 40\]; needs \[1, V_t\]"),
    ({"mean_probs": lambda x: x * 2}, "mean_probs sum to"),
    ({"mean_probs": _with(-0.1)}, "mean_probs has the value -0.1"),
    ({"hidden_second_moment": _with(torch.nan)}, "hidden_second_moment has the value nan"),
    ({"mean_squares": lambda x: x[1:].clone()}, "as the rest of the file"),
]
BAD_STATES = [
    ({"windows_read": 14}, "14 windows far"),
    ({"windows_read": 12}, "counts do not sum"),
    ({"positions": _with(95)}, "positions are not"),
    ({"positions": _with(0)}, "positions are not|keys are not"),
    ({"keys": _with(5)}, "keys are not"),
    ({"probs": _with(torch.nan)}, "probs has the value nan"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_FILES + BAD_RECORDINGS)
def test_a_bad_recording_is_refused(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "recording"
    _record(samples=20).save(path)
    _altered(path, **changes)
    with pytest.raises(RecordingError, match=sentence) as info:
        Recording.load(path)
    assert str(path) in str(info.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [row for row in BAD_FILES if "temperatures" not in row[0]] + BAD_STATES,
)
def test_a_bad_state_is_refused(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    path = tmp_path / "state"
    _record(samples=20, state=path)
    _altered(path, **changes)
    with pytest.raises(RecordingError, match=sentence) as info:
        _record(samples=20, state=path)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "recording"
    _record(samples=20, state=path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(RecordingError, match="not a complete safetensors file"):
        _record(samples=20, state=path)
    with pytest.raises(RecordingError, match="not a complete safetensors file"):
        Recording.load(path)


def test_a_state_is_no_recording_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "file"
    recording = _record(state=path)
    with pytest.raises(RecordingError, match=r"format 'rdk_cuda.recording_state'"):
        Recording.load(path)
    recording.save(path)
    with pytest.raises(RecordingError, match=r"format 'rdk_cuda.recording'"):
        _record(state=path)
    with pytest.raises(FileNotFoundError):
        Recording.load(tmp_path / "absent")


# Bad input.


def _reading_with(name: str, value: float):
    """In the second of the windows of length 4, at position 2."""
    bad = _windows()[8].ids

    def bad_read(ids: torch.Tensor) -> Reading:
        reading = Reading(*(tensor.clone() for tensor in read(ids)))
        for row, window in enumerate(ids.tolist()):
            if window == bad:
                getattr(reading, name)[row, 2, 1] = value
        return reading

    return bad_read


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("target_logits", torch.nan, "target_logits has NaN"),
        ("target_logits", torch.inf, "target_logits has inf"),
        ("hidden", torch.nan, "hidden has NaN or inf"),
        ("hidden", -torch.inf, "hidden has NaN or inf"),
    ],
)
def test_bad_values_are_refused_with_their_place(name: str, value: float, sentence: str) -> None:
    place = re.escape("window 8 (document 4), position 2: ")
    with pytest.raises(ValueError, match=f"record: {place}{sentence}; needs"):
        _record(model=_reading_with(name, value))


def test_a_row_of_logits_without_a_finite_one_is_refused() -> None:
    def nothing(ids: torch.Tensor) -> Reading:
        return Reading(torch.full((*ids.shape, V_T), -torch.inf), _table(D)[ids])

    with pytest.raises(ValueError, match="position 0: target_logits are all -inf"):
        _record(model=nothing)


def test_a_temperature_at_which_logits_overflow_is_refused() -> None:
    with pytest.raises(ValueError, match="target_logits / 1e-38 overflow float32; needs a higher"):
        _record(temperatures=(1e-38,))


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (lambda ids: Reading(_table(V_T)[ids, : V_T - (ids.numel() > 9)], _table(D)[ids]),
         r"target_logits torch.float32 \[3, 7, 39\].*needs floating point \[3, 7, V_t = 40\]"),
        (lambda ids: Reading(_table(V_T)[ids], _table(D)[ids, : D - (ids.numel() > 9)]),
         r"hidden torch.float32 \[3, 7, 2\] for windows 0 to 2; needs .*d = 3\]"),
        (lambda ids: Reading(_table(V_T)[ids[0]], _table(D)[ids]),
         r"target_logits torch.float32 \[1, 40\] for a token 0 alone; needs .*\[1, 1, V_t\]"),
        (lambda ids: Reading(_table(V_T)[ids].long(), _table(D)[ids]), "torch.int64"),
        (lambda ids: Reading(_table(V_T)[ids[:, :5]], _table(D)[ids]), r"\[3, 5, 40\]"),
    ],
)  # fmt: skip
def test_outputs_of_other_shapes_are_refused(returned, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"record: read returned .*{sentence}"):
        _record(model=returned)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"windows": []}, "windows is empty"),
        ({"windows": [Window(0, [1]), Window(4, [])]}, r"window 1 \(document 4\) has no tokens"),
        ({"windows": [Window(2, [1, V_T])]}, "window 0 .document 2. has token 40 at position 1"),
        ({"windows": [Window(2, [-1])]}, "has token -1 at position 0; needs ids in"),
        ({"temperatures": ()}, r"temperatures are \[\]"),
        ({"temperatures": (1.0, 0.0)}, r"temperatures are \[1.0, 0.0\]; needs"),
        ({"temperatures": (float("nan"),)}, "temperatures are"),
        ({"temperatures": (float("inf"),)}, "temperatures are"),
        ({"temperatures": (1, 1.0)}, "distinct"),
        ({"likeliest": 0}, "likeliest is 0; needs 1 to V_t = 40"),
        ({"likeliest": 41}, "likeliest is 41"),
        ({"samples": -1}, "samples is -1"),
        ({"context": 0}, "context is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
        ({"state": "/no/such/folder/state"}, "state is /no/such/folder/state; needs"),
        ({"state": "/"}, "state is /; needs a file"),
    ],
)
def test_bad_arguments_are_refused_by_name(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"record: .*{sentence}"):
        _record(**changes)


def test_a_temperature_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature is 0.7; recorded were 1.0, 0.6"):
        _record().mean_probs_at(0.7)


# Models.


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
    windows = _windows(4)
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
