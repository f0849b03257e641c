"""Studies of growth, calibration at scale, lifted rows and orders of work, here at small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.demo.shipped import SHIPPED
from examples.eagle3.__main__ import new_network
from profiling.studies import calibration_scale as scale
from profiling.studies import first_order_growth as growth
from profiling.studies import lifted_rows as lifted
from profiling.studies import verify_orders as orders
from profiling.studies.verify_orders import Constants, Shape
from rdk_cuda import Vocabulary
from rdk_cuda.cli.models import load_model
from rdk_cuda.integrations.eagle3 import Eagle3Checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def test_first_order_grows_linearly_and_the_dense_matrix_quadratically() -> None:
    sizes = {growth.FIRST_ORDER: (4096, 8192, 16384, 32768), growth.DENSE: (1024, 1536, 2048, 3072)}
    fitted = growth.exponents(growth.measure(sizes, rounds=9))
    assert fitted[growth.FIRST_ORDER] < 1.3
    assert fitted[growth.DENSE] > 1.6
    content = json.loads((growth.RESULTS / "results.json").read_text())
    assert content["exponents"] == pytest.approx(growth.exponents(content["rows"]))


def test_growth_is_printed_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    small = {growth.FIRST_ORDER: (64, 128, 256, 512), growth.DENSE: (64, 96, 128, 192)}
    monkeypatch.setattr(growth, "SIZES", small)
    assert growth.main(["--output", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["growth.png", "results.json"]
    content = json.loads((tmp_path / "results.json").read_text())
    measured = [(row["form"], row["size"]) for row in content["rows"]]
    assert sorted(measured) == sorted((form, n) for form, sizes in small.items() for n in sizes)
    printed = capsys.readouterr().out
    assert all(f"V^{exponent:.2f}" in printed for exponent in content["exponents"].values())


def test_every_stage_of_both_commands_is_timed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for needed in ("sklearn", "matplotlib"):
        pytest.importorskip(needed)
    path = tmp_path / "scale.json"
    sizes = ["--tokens=512", "--width=64", "--kept=200", "--positions=300"]
    assert scale.main([*sizes, "--work", str(tmp_path / "w"), "--output", str(path)]) == 0
    content = json.loads(path.read_text())
    stages = [row["stage"] for row in content["rows"]]
    expected = ["loading the models", "reading text", "lifting rows", "counting successors"]
    assert stages[:4] == expected
    assert stages[-1] == "evaluate"
    assert content["tokens"] == 512
    assert str(tmp_path) not in path.read_text()
    assert all(row["peak_bytes"] > 1e7 and row["seconds"] > 0 for row in content["rows"])
    printed = capsys.readouterr().out
    assert all(f"| {stage} |" in printed for stage in stages)


@pytest.mark.night
def test_lifted_rows_are_measured_against_a_drafter_with_all_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    target = load_model("--target", SHIPPED / "target")
    every = Vocabulary.identity(target.get_output_embeddings().weight.shape[0])
    Eagle3Checkpoint(new_network(target, every, [1, 3, 4]), every).save_pretrained(tmp_path / "all")
    path = tmp_path / "rows.json"
    given = ["--full", str(tmp_path / "all"), "--published", str(SHIPPED / "eagle3")]
    sizes = ["--positions=400", "--samples=300", "--compared=40", "--held-out=400"]
    assert lifted.main([*given, *sizes, "--threads=1", "--output", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    names = [(row["temperature"], row["method"]) for row in rows]
    methods = ("pruned drafter", "virtual tokens", "virtual+dynamic", "lifted head")
    assert names == [(t, name) for t in (1.0, 0.7, 0.0) for name in methods]
    for row in rows:
        assert row["recovered"] is None, "a drafter that was not trained has nothing to lose"
        gain, plain = row["gain"][0], row["acceptance"][0] - row["gain"][0]
        assert row["lost"][0] == pytest.approx(row["full"][0] - plain, abs=1e-6)
        assert (gain == 0) == (row["method"] == "pruned drafter") or row["temperature"] == 0
    assert str(tmp_path) not in path.read_text()
    assert "| lifted head | 0.7 |" in capsys.readouterr().out


def test_one_sequence_takes_its_bytes_at_a_blocks_rate_and_its_fixed_times() -> None:
    """By hand: a row of 2,000,000 bytes takes a block 50, and 264 blocks next to nothing."""
    constants, shape = Constants(), Shape((1,), drafts=3, columns=1_000_000)
    assert orders.in_order(constants, shape) == pytest.approx(2.5 + 2 * (50 + 3.5) + 3)
    shared = 8e6 / constants.bandwidth
    assert orders.split(constants, shape) == pytest.approx(2.5 + shared + 3.5 + 3)
    # A draft of one, in 123 parts a position: all items are read at once, and then the second
    # position is decided behind the first.
    short = Shape((1,), drafts=1, columns=1_000_000)
    read = 2.0 + 246 * (2e6 / 123) / constants.bandwidth
    assert orders.queue(constants, short) == pytest.approx(2.5 + read + 2 * 3.5 + 3)


def test_every_order_comes_to_the_floor_where_only_bytes_take_time() -> None:
    free = Constants(decision=0, last_token=0, start=0, item=0, block_rate=1e9)
    all_accepted = Shape((5,) * 264)
    for name, order in orders.ORDERS.items():
        assert order(free, all_accepted) == pytest.approx(orders.floor(free, all_accepted)), name
    rejected = Shape((0,) * 264)
    for name in ("in order", "queue"):
        assert orders.ORDERS[name](free, rejected) < 2 * orders.floor(free, rejected)
    # The control: the order that reads all rows whatever is rejected.
    assert orders.split(free, rejected) == pytest.approx(6 * orders.floor(free, rejected))


def test_the_committed_simulation_is_what_the_program_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert orders.main(["--batches", "64", "--output", str(tmp_path / "rows.json")]) == 0
    assert "queue" in capsys.readouterr().out
    written = json.loads((tmp_path / "rows.json").read_text())["rows"]
    committed = json.loads((growth.RESULTS.parent / "verify-orders/simulated.json").read_text())
    expected = [row for row in committed["rows"] if row["batch"] == 64]
    assert len(written) == len(expected) == 4
    for ours, row in zip(written, expected, strict=True):
        assert ours == pytest.approx(row)
