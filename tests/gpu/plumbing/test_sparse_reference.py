"""The sparse product that judges redistribution on a GPU is right, with SciPy's in CuPy's place."""

from __future__ import annotations

import numpy
import pytest
import torch

from rdk_cuda import reference
from tests import generators
from tests.gpu.sparse_reference import redistributed

sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")


@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_it_gives_what_the_reference_gives(kind: str) -> None:
    affinity = generators.affinity(kind, 300)
    logits = generators.logits(6, affinity.draft_size, forbidden=0.1)
    tokens, values = generators.dynamic_tokens(6, 9, 300), generators.logits(6, 9, seed=1)
    q = redistributed(numpy, sparse, affinity, logits, 0.8, tokens, values)
    columns = (*affinity.by_target, affinity.row_top)
    expected = reference.redistribute(
        logits, torch.full((6,), 0.8), *columns, tokens, values, dtype=torch.float64
    )
    torch.testing.assert_close(torch.from_numpy(q), expected, rtol=1e-6, atol=1e-12)
