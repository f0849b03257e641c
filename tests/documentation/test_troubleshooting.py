"""Mistakes that no operator can notice look as the table says, and its cures help."""

from __future__ import annotations

import math
import subprocess
import sys

import torch

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary

from .markdown import ROOT

TABLE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").split("## Troubleshooting")[1]
AFFINITY = Affinity.intersection(Vocabulary.identity(50))
LOGITS = 5 * torch.randn(200, 50, generator=torch.Generator().manual_seed(1))


def test_probabilities_in_place_of_logits_make_rows_flat_and_their_logarithms_do_not() -> None:
    assert "rows of `redistribute` are nearly flat" in TABLE
    assert "`probs.log()`" in TABLE
    right, probs = rdk_cuda.redistribute(LOGITS, AFFINITY), LOGITS.softmax(1)
    wrong = rdk_cuda.redistribute(probs, AFFINITY)
    assert float((wrong.amax(1) / wrong.amin(1)).max()) < math.e * 1.001
    assert float((right.amax(1) / right.amin(1)).min()) > 1000
    torch.testing.assert_close(rdk_cuda.redistribute(probs.log(), AFFINITY), right)


def test_without_a_step_key_a_position_that_is_drafted_again_draws_the_same_token() -> None:
    assert "step_keys=torch.ops.rdk.step_keys(seed, position of the step's first token)" in TABLE
    seeds = torch.arange(200)
    ones, positions = torch.ones(200), torch.full((200,), 12)

    def drafted(keys: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = torch.ops.rdk.draft(
            LOGITS, ones, keys, positions, *AFFINITY.by_draft
        )[0]
        return tokens

    def in_step(first: int) -> torch.Tensor:
        keys: torch.Tensor = torch.ops.rdk.step_keys(seeds, torch.full_like(seeds, first))
        return drafted(keys)

    assert torch.equal(drafted(seeds), drafted(seeds))  # of two steps that both reach position 12
    assert not torch.equal(in_step(10), in_step(12))
    again = rdk_cuda.draft(LOGITS, AFFINITY, seeds=seeds, positions=12)
    assert torch.equal(again.tokens[:, 0], in_step(12))


FORKED = """
import os, torch, rdk_cuda
torch.set_num_threads(2)
affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(20_000))
logits = torch.zeros(64, 20_000)
rdk_cuda.redistribute(logits, affinity)
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    rdk_cuda.redistribute(logits, affinity)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_on_one_thread_does_not_hang() -> None:
    assert "call `torch.set_num_threads(1)` first in the child" in TABLE
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "7\n", done.stderr
