"""The proposers that tests of the decoder try, and the exact judge of what is generated with them.

Counts of all continuations of three tokens against their exact probabilities (chi-square). Seeds
are fixed: over seeds, each `> FALSE_ALARM` fails falsely once in 10,000 times, and each control has
to be beyond CAUGHT.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import test_parts
import test_trees_in_the_loop
import torch
from table_model import RejectedDrafts, TableModel, chi_square, continuations, joint, random_table
from test_parts import DRAFTER, PROMPT, SIZE, TARGET, VOCABULARY, chain, decoder
from torch import Tensor

from rdk_cuda import Affinity, CombinedTokens, RecentTokens, ScreenedTokens, SuccessorTable
from rdk_cuda.decoding import DrafterChain, Proposer
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.lengths import Classifier, Drafted, Length, Product
from rdk_cuda.dynamic_tokens import DynamicTokens
from rdk_cuda.vocabulary import Vocabulary

LENGTH = 3
HEAD = test_trees_in_the_loop.HEAD


def unlike_1(drafted: Drafted) -> Tensor:
    """Any function of what stays will do, also of the newest token itself."""
    return drafted.places[-1].tokens[:, 0] != 1


LENGTHS: dict[str, Length] = {
    "product": Product(0.25),
    "classifier": Classifier((0.8, 0.2, 0.1, -0.5, 1.2), 0.3),
    "by token": unlike_1,
}

# ------------------------------------------------------------------------------- dynamic tokens


class EverythingDrafted:
    """Recent tokens of all that a sequence has ever drafted or kept, rejected drafts included."""

    def __init__(self) -> None:
        self.recent = recent()
        self.histories: list[list[int]] = []
        self.lengths: list[int] = []

    def __call__(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        self.histories = self.histories or [[] for _ in contexts]
        self.lengths = self.lengths or [0 for _ in contexts]
        for b, context in enumerate(contexts):
            # After a rejection the context grows again from where it was cut.
            self.histories[b] += context[min(self.lengths[b], len(context) - 1) :]
            self.lengths[b] = len(context)
        return self.recent(self.histories)


def recent() -> RecentTokens:
    return RecentTokens(VOCABULARY, 2, 4)


def successors() -> SuccessorTable:
    """Up to two pruned tokens after each; none after 4, with which the prompt ends."""
    offsets = torch.tensor([0, 2, 4, 5, 7, 7, 9], dtype=torch.int32)
    tokens = torch.tensor([4, 2, 3, 0, 2, 0, 3, 4, 2], dtype=torch.int32)
    return SuccessorTable(offsets, tokens, width=2)


def screened() -> ScreenedTokens:
    """The two of four pruned tokens that a screen of rank 8 finds for each of the 36 states."""
    right = torch.randn(8, SIZE * SIZE, generator=torch.Generator().manual_seed(3))
    left = DRAFTER.T[VOCABULARY.pruned] @ right.T
    return ScreenedTokens.from_factors(VOCABULARY, left, right, width=2)


SOURCES: dict[str, Callable[[], DynamicTokens]] = {
    "all that was drafted": EverythingDrafted,
    "successors": successors,
    "recent tokens, successors": lambda: CombinedTokens([recent(), successors()], VOCABULARY, 3),
    "screened": screened,
    "recent tokens, screened": lambda: CombinedTokens([recent(), screened()], VOCABULARY, 3),
}


def dynamic(source: Callable[[], DynamicTokens], **options: Any) -> DrafterChain:
    return chain(dynamic_tokens=source(), full_head=HEAD, **options)


def rejected_drafts_again() -> DrafterChain:
    """Of a drafter that knows little, so that positions are often drafted twice."""
    table = random_table(SIZE, seed=2, spread=0.5)
    return DrafterChain(
        TableModel(table, SIZE),
        Affinity.intersection(Vocabulary.identity(SIZE)),
        draft_length=3,
        dynamic_tokens=RejectedDrafts(len(PROMPT)),
        full_head=((table.T + 1).contiguous(), None),
    )


# ------------------------------------------------------------------------------- affinities

TO_TWO = Affinity.from_rows([{5: 0.5, 0: 0.5}, {1: 0.2, 3: 0.8}], target_size=SIZE)
FIRST_ORDER = Affinity.first_order(
    VOCABULARY, torch.softmax(TARGET.table, -1).mean(0), tau=0.05, keep=0.5
)


def by_affinity(affinity: Affinity) -> DrafterChain:
    """A drafter of two tokens."""
    drafter = TableModel(DRAFTER[:, VOCABULARY.draft_ids], SIZE)
    return DrafterChain(drafter, affinity, draft_length=3)


PROPOSERS: dict[str, Callable[[], Proposer]] = {
    **test_parts.PROPOSERS,
    **{f"tree, {name}": tree for name, tree in test_trees_in_the_loop.PROPOSERS.items()},
    **{f"length, {n}": partial(chain, length=x, draft_length=4) for n, x in LENGTHS.items()},
    **{f"dynamic, {name}": partial(dynamic, source) for name, source in SOURCES.items()},
    "dynamic, drafts of all columns": partial(dynamic, recent, truncate_drafts=False),
    "rejected drafts again": rejected_drafts_again,
    "rows of two tokens": partial(by_affinity, TO_TWO),
    "intersection": partial(by_affinity, Affinity.intersection(VOCABULARY)),
    "first order": partial(by_affinity, FIRST_ORDER),
    "cold drafts": partial(chain, draft_temperature=0.4, draft_length=2),
    "greedy drafts": partial(chain, draft_temperature=0.0, draft_length=2),
}

# ------------------------------------------------------------------------------- the judge


class Condition(NamedTuple):
    """What is generated with: a temperature, limits, and whether a mask says what may follow."""

    temperature: float
    limits: dict[str, Any] = {}  # noqa: RUF012  (nobody changes it)
    masks: bool = False


ALL_LIMITS: dict[str, Any] = {"top_k": 4, "top_p": 0.9, "min_p": 0.02}
CONDITIONS = {
    "as it is": Condition(1.0),
    "top-k": Condition(0.8, {"top_k": 3}),
    "a mask": Condition(1.2, masks=True),
    "min-p": Condition(0.8, {"min_p": 0.1}),
    "cold": Condition(0.6),
    "top-p": Condition(0.8, {"top_p": 0.8}),
    "a mask and all limits": Condition(0.8, ALL_LIMITS, masks=True),
    "all limits": Condition(0.8, ALL_LIMITS),
}

# What the last token allows next: five of six tokens.
ALLOWED = ~torch.eye(SIZE, dtype=torch.bool).roll(2, 1)


def allowed(sequences: Sequence[Continuation], rows: int) -> Tensor:
    """Bits of what may follow each row's last token."""
    words = torch.zeros(len(sequences), rows, 1, dtype=torch.int32)
    bits = (ALLOWED.int() << torch.arange(SIZE)).sum(1).int()
    for b, s in enumerate(sequences):
        known = [*s.tokens[-1:], *s.drafts][:rows]
        words[b, : len(known), 0] = bits[known]
    return words


def processed(temperature: float, masks: bool = False, top_k: int = 0, top_p: float = 1.0,
              min_p: float = 0.0) -> TableModel:  # fmt: skip
    """The target as a table of truncated log-probabilities, by definition."""
    table = TARGET.table.double() / temperature
    if masks:
        table = table.masked_fill(~ALLOWED.repeat(SIZE, 1), -math.inf)
    probs = table.softmax(1)
    table = table.masked_fill(probs < min_p * probs.amax(1, keepdim=True), -math.inf)
    if top_k:
        table = table.masked_fill(table < table.topk(top_k, 1).values[:, -1:], -math.inf)
    values, order = table.softmax(1).sort(1, descending=True)
    late = values.cumsum(1) - values >= top_p
    table = table.masked_fill(torch.zeros_like(late).scatter(1, order, late), -math.inf)
    return TableModel(table, SIZE)


def judged(observed: Counter[tuple[int, ...]], condition: Condition) -> float:
    """The p-value of continuations, 0 where one that cannot be was observed."""
    exact = joint(
        processed(condition.temperature, condition.masks, **condition.limits), PROMPT, LENGTH
    )
    possible = {key: p for key, p in exact.items() if p > 0}
    return chi_square(observed, possible) if observed.keys() <= possible.keys() else 0.0


def p_value(
    make: Callable[[], Proposer],
    method: str,
    condition: Condition,
    samples: int,
    expected: Condition | None = None,
) -> float:
    """Of three tokens of four, since positions that are drafted twice matter, too."""
    options = {"temperature": condition.temperature, **condition.limits}
    options["allowed"] = allowed if condition.masks else None
    found = continuations(lambda: decoder(make(), method), PROMPT, LENGTH, samples, 1, **options)
    return judged(found, expected or condition)
