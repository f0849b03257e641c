"""`rdk::verify` by block decides what the reference decides from the same random words."""

from __future__ import annotations

import pytest
import torch

import rdk_cuda
from tests import generators
from tests.generators import Batch
from tests.operators.test_verify import assert_verifies_as_the_reference, decisions

pytestmark = pytest.mark.usefixtures("device")


def by_block(batch: Batch) -> Batch:
    return batch.replace(method=1)


# ------------------------------------------------------------------------- where a draft ends


# ------------------------------------------------------------------------- the direct pass


@pytest.mark.not_on("small-batches")
def test_the_direct_pass_is_what_the_reference_does() -> None:
    """The first draft leaves a factor of 0.95, and the target forbids the second.

    Of the second row, 0.95 p exceeds q at token 0 only, but p at token 3, too.
    """
    sequences = 300
    q = torch.tensor([0.5, 0.02, 0.02, 0.4, 0.06])
    p = torch.tensor(
        [[0.501, 0.019, 0.02, 0.4, 0.06], [0.54, 0.02, 0.02, 0.42, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]]
    )
    batch = generators.batch(generators.affinity("identity", 5), [2] * sequences)
    batch = batch.replace(
        target_logits=p.log().repeat(sequences, 1),
        draft_logits=q.log().repeat(2 * sequences, 1),
        draft_token_ids=torch.tensor([1, 4]).repeat(sequences),
    )
    trace = assert_verifies_as_the_reference(by_block(batch))
    assert decisions(trace, "give up")
    assert decisions(trace, "direct") > 20


# ------------------------------------------------------------------------- arguments and results


def test_the_python_layer_names_the_methods() -> None:
    affinity = generators.affinity("identity", 40)
    logits = generators.logits(60, 40, 3).unflatten(0, (20, 3))
    target = generators.logits(80, 40, 4).unflatten(0, (20, 4))
    draft = rdk_cuda.draft(logits, affinity, seeds=1, positions=0)
    by_token = rdk_cuda.verify(target, draft, affinity)
    assert torch.equal(rdk_cuda.verify(target, draft, affinity, method="token")[0], by_token[0])
    assert not torch.equal(rdk_cuda.verify(target, draft, affinity, method="block")[0], by_token[0])
