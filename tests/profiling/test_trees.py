"""The study of chains and trees counts what the operators accept, on average."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rdk_cuda
from examples.demo.corpus import calibration_files
from profiling.studies.trees import __main__ as study
from profiling.studies.trees.__main__ import (
    WAYS,
    accepted_by_block,
    accepted_by_token,
    accepted_of_tree,
)
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding.trees import Tree
from tests import generators

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE, LENGTH, TIMES = 6, 3, 20_000
# Of a mean of at most LENGTH: 6 standard errors, so a false alarm in 10^9.
TOLERANCE = 6 * LENGTH / 2 / TIMES**0.5


@pytest.mark.parametrize("seed", range(4))
def test_the_expectations_are_the_operators_means(seed: int) -> None:
    target = generators.logits(LENGTH + 1, SIZE, seed, scale=1.0)
    drafter = target[:-1] + generators.logits(LENGTH, SIZE, seed + 9, scale=1.0)
    tokens = torch.randperm(SIZE, generator=generators.generator(seed))[None, :LENGTH]
    affinity = Affinity.intersection(Vocabulary.identity(SIZE))
    p, q = target.softmax(1)[None], drafter.softmax(1)[None]
    draft = rdk_cuda.draft(
        drafter.expand(TIMES, LENGTH, SIZE).contiguous(), affinity, seeds=torch.arange(TIMES)
    )
    draft.tokens[:] = tokens
    given = target.expand(TIMES, LENGTH + 1, SIZE)
    for method, expected in (
        ("token", accepted_by_token(p, q, tokens).sum()),
        ("block", accepted_by_block(p, q, tokens)[0, -1]),
    ):
        verified = rdk_cuda.verify(given, draft, affinity, method=method)
        mean = float(verified.num_accepted.double().mean())
        assert abs(mean - float(expected)) < TOLERANCE

    tree = Tree(tokens, torch.tensor([[-1, -1, seed % 2]]))
    walked = rdk_cuda.verify_tree(
        given, tokens.expand(TIMES, LENGTH), tree.parents[0], seeds=torch.arange(TIMES)
    )
    expected = accepted_of_tree(p, tree).sum()
    assert abs(float(walked.num_accepted.double().mean()) - float(expected)) < TOLERANCE


def test_by_block_at_least_as_many_are_accepted_on_average_over_drafts() -> None:
    """Given one chain it may be fewer; over chains drawn from q it may not."""
    target, drafter = generators.logits(5, SIZE, 1), generators.logits(4, SIZE, 2)
    tokens = torch.multinomial(drafter.softmax(1), TIMES, True, generator=generators.generator(3)).T
    p, q = target.softmax(1).expand(TIMES, -1, -1), drafter.softmax(1).expand(TIMES, -1, -1)
    by_token = accepted_by_token(p, q, tokens).cumsum(1).mean(0)
    by_block = accepted_by_block(p, q, tokens).mean(0)
    assert (by_block > by_token - 0.01).all()
    assert by_block[-1] > by_token[-1] + 0.02


def test_the_committed_result_has_every_drafter_temperature_and_length() -> None:
    content = json.loads(study.RESULTS.read_text())
    rows = {(row["method"], row["temperature"], row["drafts"]) for row in content["rows"]}
    assert rows == {
        (method, temperature, length)
        for method in study.METHODS
        for temperature in study.TEMPERATURES
        for length in study.LENGTHS
    }
    for row in content["rows"]:
        for way in WAYS:
            value, low, high = row[way]
            assert 0 <= low <= value <= high <= row["drafts"]
        if row["temperature"] == 0:
            assert row[WAYS[1]] == row[WAYS[0]]


@pytest.mark.night
@pytest.mark.parametrize("drafter", ["drafter", "eagle3"])
def test_the_study_measures_prints_and_writes(
    drafter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(study, "METHODS", study.METHODS[:1])
    monkeypatch.setattr(study, "LENGTHS", (2, 3))
    monkeypatch.setattr(study, "training_files", lambda: calibration_files()[:4])
    path = tmp_path / "trees.json"
    options = ["--contexts=4", "--positions=400", "--drafter", str(study.SHIPPED / drafter)]
    assert study.main([*options, "--output", str(path)]) == 0
    content = json.loads(path.read_text())
    assert len(content["rows"]) == len(study.TEMPERATURES) * 2
    assert "full drafter" in capsys.readouterr().out
    for row in content["rows"]:
        most = row["drafts"] + 1
        for way in WAYS:
            rows, seconds = row[f"{way}, rows read"][0], row[f"{way}, milliseconds"] / 1000
            assert 1 <= rows <= most
            assert way == "chain by block" or rows == pytest.approx(row[way][0] + 1)
            speed = row[f"{way}, tokens per second"][0]
            assert speed == pytest.approx((row[way][0] + 1) / seconds)
