"""One speculative position: drafts have the frequencies of q, outputs those of p.

Chi-square tests over 20,000 to 60,000 independent sequences with fixed seeds; each would fail for a
right implementation with probability 1e-6. Negative controls are wrong as speculative decoders have
been wrong, and must be caught.
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests import generators
from tests.proof.soak.__main__ import Soak
from tests.proof.statistics.chi_square import assert_caught, assert_fits, histogram
from tests.proof.statistics.position import Position

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SIZE = 30


def first_token(
    position: Position, drafted: Tensor, stats: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The token that is put out, and whether it is the draft."""
    output, accepted = position.verify(drafted, stats)
    return output[:, 0], accepted.bool()


def hard_case() -> Position:
    """The drafter believes the opposite of the target: about 3 in 4 are rejected."""
    target = generators.logits(1, SIZE, 1, scale=1.2)
    affinity = generators.affinity("identity", SIZE)
    return Position(affinity, target.repeat(2, 1), -target)


def test_drafts_outputs_and_accepted_lengths_are_distributed_as_they_should_be() -> None:
    """A small soak: one-hot drafts, dynamic tokens, and temperatures that differ."""
    soak = Soak(0)
    soak.run(1_000_000)
    rows = [soak.row(index) for index in range(len(soak.cases))]
    assert [row for row in rows if not (row["control"] or row["as_it_should_be"])] == []
    caught = {row["case"]: row["as_it_should_be"] for row in rows if row["control"]}
    assert caught["a coin for two positions"]
    for case, counts in zip(soak.cases, soak.counts, strict=True):
        if case.kind != "first-order" and case.draft_temperature:  # q hardly depends on the drafter
            assert_caught(counts["drafted"], case.position.q(1.5 * case.draft_temperature)[0])


# ----------------------------------------------------------------------- drafted tokens


def test_drafted_tokens_over_several_chunks() -> None:
    """2,500 columns in three chunks and dynamic ones in a fourth: the two-level draw."""
    affinity = generators.affinity("identity", 2500)
    position = Position.random(affinity, sequences=30_000, dynamic=6)
    counts = histogram(position.draft(), 2500)
    assert_fits(counts, position.q()[0])
    assert_caught(counts.flip(0), position.q()[0])


def test_neighbouring_sequences_draft_independently() -> None:
    position = Position.random(generators.affinity("mixed-2", 6), sequences=40_000)
    (q,) = position.q()
    tokens = position.draft()
    pairs = histogram(tokens[0::2] * 6 + tokens[1::2], 36)
    assert_fits(pairs, torch.outer(q, q))
    position.step_keys //= 2  # The control: neighbours share a seed.
    tokens = position.draft()
    assert_caught(histogram(tokens[0::2] * 6 + tokens[1::2], 36), torch.outer(q, q))


# ----------------------------------------------------------------------- the output


def test_accepted_and_replaced_tokens_separately() -> None:
    """Accepted ones are min(p, q), replaced ones max(p - q, 0), each normalised."""
    position = hard_case()
    p, (q,), tokens = position.p[0], position.q(), position.draft()
    output, accepted = first_token(position, tokens, position.stats())
    assert_fits(histogram(output, SIZE), p)
    assert 0.15 < float(accepted.double().mean()) < 0.4
    overlap = torch.minimum(p, q)
    assert_fits(histogram(output[accepted], SIZE), overlap / overlap.sum())
    assert_fits(histogram(output[~accepted], SIZE), reference.residual(p, q))
    # The controls: neither the drafted nor the replaced tokens are anything like p.
    assert_caught(histogram(tokens, SIZE), p)
    assert_caught(histogram(output[~accepted], SIZE), p)


def test_a_draft_that_is_rejected_by_rule_leaves_p() -> None:
    position = Position.random(generators.affinity("mixed-2", SIZE))
    output, accepted = first_token(position, torch.full((position.sequences,), SIZE + 5))
    assert not accepted.any()
    assert_fits(histogram(output, SIZE), position.p[0])


# ----------------------------------------------------------------------- the direct pass


@pytest.mark.parametrize("missing", [0.01, 0.0003])
def test_the_residual_is_exact_when_every_try_fails(missing: float) -> None:
    """p and q differ by ``missing`` in total variation and the drafted token is one p forbids.

    So it is always rejected, and a try succeeds with probability ``missing``: 72 % and 99 % of the
    sequences go through the direct pass.
    """
    size = 12
    affinity = generators.affinity("identity", size)
    drafter = generators.logits(1, size, 2, scale=1.0)
    drafter[0, 5] = drafter[0, torch.arange(size) != 5].logsumexp(0) + math.log(missing)
    target = drafter.clone()
    target[0, 5] = -math.inf
    # The missing mass goes to tokens 2 and 3, in proportion 3 to 1: that is the residual.
    q = torch.softmax(drafter[0].double(), 0)
    wanted = q.clone()
    wanted[5] = 0
    wanted[2] += 0.75 * q[5]
    wanted[3] += 0.25 * q[5]
    position = Position(affinity, wanted.log().float().repeat(2, 1), drafter)
    output, accepted = first_token(position, torch.full((position.sequences,), 5))
    assert not accepted.any()
    assert_caught(histogram(output, size), position.p[0])
    # In float32 p - q is a difference of nearly equal numbers: its error, of the order of
    # 1e-7 / missing, is far below what 20,000 draws can see.
    residual = torch.zeros(size)
    residual[2], residual[3] = 0.75, 0.25
    impossible = residual == 0
    counts = histogram(output, size)
    assert float(counts[impossible].sum()) < 1e-2 * position.sequences
    assert_fits(counts[~impossible], residual[~impossible])


# ----------------------------------------------------------------------- negative controls


def test_a_greedy_draft_verified_as_if_it_had_been_drawn_is_caught() -> None:
    position = Position.random(generators.affinity("virtual", SIZE))
    p, (q,) = position.p[0], position.q()
    output, _ = first_token(position, q.argmax().expand(position.sequences).contiguous())
    assert_caught(histogram(output, SIZE), p)
    one_hot = torch.nn.functional.one_hot(q.argmax(), SIZE).double()
    wrong = reference.output_distribution(p, q, drafted=one_hot)
    assert_fits(histogram(output, SIZE), wrong)
