"""Steps that `make test-vllm` has recorded in a real vLLM, with either model runner."""

from __future__ import annotations

import pytest
import torch

from .steps import FOLDER, differing, replayed


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_real_step_draws_what_it_drew(runner: str, device: torch.device) -> None:
    """But for rare boundaries, as in test_agreement; drafts also in CUDA graphs."""
    file = FOLDER / f"steps-{runner}.pt"
    if not file.is_file():
        pytest.skip("make test-vllm has not written its steps")
    wrong, drawn = 0, 0
    for call, run in replayed(file, device):
        result = run()
        differ, count = differing(result, call.result)
        assert not (differ and call.name == "layout")
        wrong, drawn = wrong + differ, drawn + count * (call.name != "layout")
        if call.name == "draft" and device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = run()
            graph.replay()
            assert torch.equal(captured, result)
    assert drawn > 50
    assert wrong <= 1 + drawn // 1000
