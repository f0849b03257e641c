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

from scipy import stats
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.proof.statistics.chi_square import assert_caught, assert_fits, histogram
from tests.tolerances import FALSE_ALARM

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SIZE = 30
KINDS = ["intersection", "first-order", "virtual", "mixed-2"]


class Position:
    """Fixed logits of one position, and many sequences that decide it independently."""

    def __init__(
        self,
        affinity: Affinity,
        *,
        sequences: int = 20_000,
        target: Tensor | None = None,
        drafter: Tensor | None = None,
        target_temperature: float = 1.0,
        draft_temperature: float = 1.0,
        dynamic: bool = False,
    ) -> None:
        self.affinity, self.sequences = affinity, sequences
        self.target = generators.logits(1, affinity.target_size, 1) if target is None else target
        self.drafter = generators.logits(1, affinity.draft_size, 2) if drafter is None else drafter
        self.target_temperature = target_temperature
        self.draft_temperature = draft_temperature
        self.dynamic: tuple[Tensor | None, Tensor | None] = (None, None)
        if dynamic:
            tokens = generators.dynamic_tokens(1, 6, affinity.target_size)
            self.dynamic = (tokens, generators.logits(1, 6, 3))
        self.step_keys = torch.arange(sequences)
        self.positions = torch.full((sequences,), 17)

    def many(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.expand(self.sequences, -1)

    def each(self, value: float) -> Tensor:
        return torch.full((self.sequences,), value)

    @property
    def p(self) -> Tensor:
        return torch.softmax(self.target[0].double() / self.target_temperature, 0)

    def q(self, temperature: float | None = None) -> Tensor:
        scale = self.draft_temperature if temperature is None else temperature
        columns = (*self.affinity.by_target, self.affinity.row_top)
        return reference.redistribute(
            self.drafter, torch.full((1,), scale), *columns, *self.dynamic, dtype=torch.float64
        )[0]

    def draft(self) -> tuple[Tensor, Tensor]:
        tokens, stats = torch.ops.rdk.draft(
            self.many(self.drafter),
            self.each(self.draft_temperature),
            self.step_keys,
            self.positions,
            *self.affinity.by_draft,
            *map(self.many, self.dynamic),
        )
        return tokens, stats

    def verify(self, tokens: Tensor, stats: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The token at this position and whether the draft was accepted."""
        count = self.sequences
        output, accepted, _ = torch.ops.rdk.verify(
            self.target.expand(2 * count, -1),
            self.many(self.drafter),
            stats,
            None,
            tokens,
            torch.arange(count + 1, dtype=torch.int32),
            self.each(self.target_temperature),
            self.each(self.draft_temperature),
            self.step_keys,
            self.positions,
            *self.affinity.by_target,
            1,
            *map(self.many, self.dynamic),
        )
        return output[:, 0], accepted.bool()


def hard_case() -> Position:
    """The drafter believes the opposite of the target: about 3 in 4 are rejected."""
    target = generators.logits(1, SIZE, 1, scale=1.2)
    affinity = generators.affinity("identity", SIZE)
    return Position(affinity, target=target, drafter=-target)


# ----------------------------------------------------------------------- drafted tokens have q


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_drafted_tokens_are_distributed_as_q(kind: str, dynamic: bool, temperature: float) -> None:
    position = Position(
        generators.affinity(kind, SIZE), draft_temperature=temperature, dynamic=dynamic
    )
    counts = histogram(position.draft()[0], SIZE)
    assert_fits(counts, position.q())
    if kind != "first-order":  # There q hardly depends on the drafter.
        assert_caught(counts, position.q(temperature * 1.5))


def test_drafted_tokens_over_several_chunks() -> None:
    """2,500 columns in three chunks and dynamic ones in a fourth: the two-level draw."""
    affinity = generators.affinity("identity", 2500)
    position = Position(affinity, sequences=30_000, dynamic=True)
    counts = histogram(position.draft()[0], 2500)
    assert_fits(counts, position.q())
    assert_caught(counts.flip(0), position.q())


def test_neighbouring_sequences_draft_independently() -> None:
    position = Position(generators.affinity("mixed-2", 6), sequences=40_000)
    q = position.q()
    tokens, _ = position.draft()
    pairs = histogram(tokens[0::2] * 6 + tokens[1::2], 36)
    assert_fits(pairs, torch.outer(q, q))
    position.step_keys //= 2  # The control: neighbours share a seed.
    tokens, _ = position.draft()
    assert_caught(histogram(tokens[0::2] * 6 + tokens[1::2], 36), torch.outer(q, q))


# ----------------------------------------------------------------------- the output has p


@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.7, 1.4), (1.0, 0.0)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_token_is_distributed_as_p(
    kind: str, dynamic: bool, temperatures: tuple[float, float]
) -> None:
    """And as many drafts are accepted as the algebra says."""
    position = Position(
        generators.affinity(kind, SIZE),
        target_temperature=temperatures[0],
        draft_temperature=temperatures[1],
        dynamic=dynamic,
    )
    output, accepted = position.verify(*position.draft())
    assert_fits(histogram(output, SIZE), position.p)
    rate = float(reference.acceptance_rate(position.p, position.q()))
    binomial = stats.binom(position.sequences, rate)
    count = int(accepted.sum())
    assert min(binomial.cdf(count), binomial.sf(count - 1)) > FALSE_ALARM / 2


def test_accepted_and_replaced_tokens_separately() -> None:
    """Accepted ones are min(p, q), replaced ones max(p - q, 0), each normalised."""
    position = hard_case()
    p, q = position.p, position.q()
    tokens, draft_stats = position.draft()
    output, accepted = position.verify(tokens, draft_stats)
    assert_fits(histogram(output, SIZE), p)
    assert 0.15 < float(accepted.double().mean()) < 0.4
    overlap = torch.minimum(p, q)
    assert_fits(histogram(output[accepted], SIZE), overlap / overlap.sum())
    assert_fits(histogram(output[~accepted], SIZE), reference.residual(p, q))
    # The controls: neither the drafted nor the replaced tokens are anything like p.
    assert_caught(histogram(tokens, SIZE), p)
    assert_caught(histogram(output[~accepted], SIZE), p)


def test_a_draft_that_is_rejected_by_rule_leaves_p() -> None:
    position = Position(generators.affinity("mixed-2", SIZE))
    output, accepted = position.verify(torch.full((position.sequences,), SIZE + 5))
    assert not accepted.any()
    assert_fits(histogram(output, SIZE), position.p)


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
    position = Position(affinity, target=wanted.log().float()[None], drafter=drafter)
    output, accepted = position.verify(torch.full((position.sequences,), 5))
    assert not accepted.any()
    assert_caught(histogram(output, size), position.p)
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
    position = Position(generators.affinity("virtual", SIZE))
    greedy = position.q().argmax()
    output, _ = position.verify(greedy.expand(position.sequences).contiguous())
    assert_caught(histogram(output, SIZE), position.p)
    one_hot = torch.nn.functional.one_hot(greedy, SIZE).double()
    wrong = reference.output_distribution(position.p, position.q(), drafted=one_hot)
    assert_fits(histogram(output, SIZE), wrong)
