"""When drafts end: by rules that see what was drafted. That they are lossless: lossless.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lossless import LENGTHS
from table_model import TableModel, pruned
from test_parts import AFFINITY, DRAFTER, TARGET, VOCABULARY, chain
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, RecentTokens
from rdk_cuda.decoding import DrafterChain, SpeculativeDecoder
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.lengths import Classifier, Drafted, Length
from tests import generators

SIZE = VOCABULARY.target_size


def decoder(length: Length | None, **options: Any) -> SpeculativeDecoder:
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    return SpeculativeDecoder(
        TARGET, drafter, AFFINITY, draft_length=4, length=length, vocabulary=VOCABULARY, **options
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", LENGTHS)
def test_drafts_end_early(name: str, temperature: float) -> None:
    """With dynamic tokens and limits, too."""
    prompts = [[1], [4, 4, 5, 4], [0, 3, 5, 2, 0, 3], [2]]
    options: dict[str, Any] = {"max_new_tokens": [40, 20, 41, 30], "seeds": [7, 8, 9, 10]}
    head = ((DRAFTER.T + 1).contiguous(), None)
    dynamic = {"dynamic_tokens": RecentTokens(VOCABULARY, 2, 4), "full_head": head}
    for more, limits in (({}, {}), (dynamic, {"top_k": 4, "min_p": 0.02})):
        found, fixed = (
            decoder(length, **more).generate(prompts, **options, temperature=temperature, **limits)
            for length in (LENGTHS[name], None)
        )
        assert 0 < sum(found.statistics.drafted) < sum(fixed.statistics.drafted)
        assert found.statistics.drafted[0] > 0 < found.statistics.drafted[1]


AFFINITIES = {
    "virtual": AFFINITY,
    "priors": generators.affinity("mixed-2", SIZE),
    "identity": Affinity.intersection(rdk_cuda.Vocabulary.identity(SIZE)),
}


@pytest.mark.parametrize("limits", [{}, {"top_k": 3, "min_p": 0.05}], ids=["all", "cut"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", AFFINITIES)
def test_probabilities_are_redistribute_s_and_entropies_those_of_the_row(
    name: str, dynamic: bool, limits: dict[str, Any]
) -> None:
    """Of greedy drafts those of temperature 1, of which nothing is cut."""
    affinity, count = AFFINITIES[name], 40
    logits = generators.logits(count, affinity.draft_size, 3)
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0]).repeat(count // 4)
    columns: dict[str, Any] = {}
    if dynamic:
        columns["dynamic_tokens"] = generators.dynamic_tokens(count, 3, SIZE)
        columns["dynamic_logits"] = generators.logits(count, 3, 4)
    draft = rdk_cuda.draft(logits, affinity, temperature, seeds=1, positions=0, **columns, **limits)
    seen = Drafted(affinity)
    seen.places.append(draft)
    one = torch.where(temperature > 0, temperature, 1.0)
    cut = {
        limit: torch.full((count,), value).where(temperature > 0, 0)
        for limit, value in limits.items()
    }
    q = rdk_cuda.redistribute(logits, affinity, one, **columns, **cut)
    expected = q.gather(1, draft.tokens)
    torch.testing.assert_close(seen.probs, expected, rtol=1e-5, atol=1e-7)
    # With the identity the row's own entropy is q's, if no token has two columns.
    if name == "identity" and not dynamic:
        entropy = torch.special.entr(q.double()).sum(1, keepdim=True).float()
        torch.testing.assert_close(seen.entropies, entropy, rtol=1e-4, atol=1e-5)


def test_entropies_count_dynamic_columns() -> None:
    """Two equal columns of two tokens each: ln 4, and ln 2 where the dynamic ones are unused."""
    affinity = Affinity.intersection(rdk_cuda.Vocabulary([0, 1], 4))
    draft = rdk_cuda.draft(
        torch.zeros(2, 2),
        affinity,
        seeds=1,
        positions=0,
        dynamic_tokens=torch.tensor([[2, 3], [-1, 7]], dtype=torch.int32),
        dynamic_logits=torch.zeros(2, 2),
    )
    seen = Drafted(affinity)
    seen.places.append(draft)
    torch.testing.assert_close(seen.entropies[:, 0], torch.tensor([4.0, 2.0]).log())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_row_has_the_bits_that_it_has_alone_in_any_batch(
    dynamic: bool, temperature: float
) -> None:
    """Also beside rows that have more dynamic tokens. Whether a draft ends goes by thresholds."""
    affinity, count, places, own = generators.affinity("mixed-3", 500), 23, 5, 4
    logits = generators.logits(count * places, 250, 3).view(count, places, -1)
    tokens = generators.dynamic_tokens(count * places, own, 500).view(count, places, own)
    scores = generators.logits(count * places, own, 4).view(count, places, own)

    def seen(rows: list[int], columns: int) -> list[Tensor]:
        drafted = Drafted(affinity)
        for place in range(places):
            given: dict[str, Any] = {"seeds": rows, "positions": place, "temperature": temperature}
            if dynamic:
                more, here = (0, columns - own), (rows, place)
                given["dynamic_tokens"] = torch.nn.functional.pad(tokens[here], more, value=-1)
                given["dynamic_logits"] = torch.nn.functional.pad(scores[here], more)
            drafted.places.append(rdk_cuda.draft(logits[rows, place], affinity, **given))
        classifier = Classifier((0.8, 0.2, 0.1, -0.5, 1.2), 0.5)
        return [drafted.probs, drafted.features, classifier.accepted(drafted.features)]

    whole = seen(everyone := list(range(count)), own)
    for rows in ([0, 5, 9], everyone[::-1], [3, 1] * 9, *([row] for row in everyone[::3])):
        for columns in (own, own + 5):
            for found, expected in zip(seen(rows, columns), whole, strict=True):
                assert torch.equal(found, expected[rows])


def test_a_draft_ends_behind_the_first_token_that_is_too_unlikely() -> None:
    """By hand: q of the drawn tokens, place by place."""

    class Watched(DrafterChain):
        def propose(self, sequences: Sequence[Continuation], step: Any) -> Any:
            proposal = super().propose(sequences, step)
            draft = proposal.draft
            q = rdk_cuda.redistribute(draft.logits, AFFINITY)
            for row, probs in zip(proposal.tokens.tolist(), q, strict=True):
                drawn = [float(probs[k, x]) for k, x in enumerate(row) if x >= 0]
                assert all(each >= 0.3 for each in drawn[:-1])
                ended.append(len(drawn) == 5 or drawn[-1] < 0.3)
            return proposal

    def likely(drafted: Drafted) -> Tensor:
        return drafted.probs[:, -1] >= 0.3

    ended: list[bool] = []
    proposer = chain(Watched, draft_length=5, length=likely)
    decoding = SpeculativeDecoder(TARGET, affinity=AFFINITY, proposer=proposer)
    with pytest.raises(StopIteration):
        decoding.generate([[1], [3, 2]], max_new_tokens=400, seeds=[1, 2], stop=_after(100))
    assert len(ended) > 50
    assert all(ended)


def _after(calls: int) -> Any:
    left = iter(range(calls))

    def stop(sequence: int, tokens: Sequence[int]) -> bool:
        next(left)
        return False

    return stop
