"""The example of a decoding step in a CUDA graph, which captures nothing where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.documentation.test_examples import run_example


def test_the_example_captures_and_replays(cuda: torch.device, tmp_path: Path) -> None:
    printed = run_example("cuda_graph", tmp_path)
    assert printed[0] == "50 replays of one CUDA graph: the tokens of 50 eager steps"
