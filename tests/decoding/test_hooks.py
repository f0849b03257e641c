"""`process` changes what the target judges drafts by, `stop` says where sequences end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from table_model import TableModel, random_table
from torch import Tensor

from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Continuation, Kind

SIZE, LENGTH, PROMPT, SAMPLES = 6, 3, [2, 4], 12_000
FALSE_ALARM, CAUGHT = 1e-4, 1e-6
TARGET = random_table(SIZE, seed=1)
DRAFTER = 0.6 * TARGET + random_table(SIZE, seed=2, spread=0.8)


def decoder(draft_length: int = 3) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        TableModel(TARGET, SIZE), TableModel(DRAFTER, SIZE), draft_length=draft_length
    )


def no_repeats(table: Tensor) -> Tensor:
    """The table with a penalty for the last token."""
    last = torch.arange(SIZE * SIZE) % SIZE
    changed = table.clone()
    changed[torch.arange(SIZE * SIZE), last] -= 2.0
    return changed


def process(sequences: Sequence[Continuation], logits: Tensor) -> Tensor:
    """The same penalty, by the tokens that each row is said to follow."""
    changed = logits.clone()
    for b, s in enumerate(sequences):
        for j in range(len(s.drafts) + 1 if s.room else 0):
            changed[b, j, (s.tokens + s.drafts[:j])[-1]] -= 2.0
    return changed


def stale(sequences: Sequence[Continuation], logits: Tensor) -> Tensor:
    """As if there were no drafts yet."""
    changed = logits.clone()
    for b, s in enumerate(sequences):
        changed[b, :, s.tokens[-1]] -= 2.0
    return changed


def test_a_sequence_ends_where_stop_says_so_and_nowhere_else() -> None:
    """It is asked once after every token, also after accepted drafts."""
    prompts = [[1], [4, 4, 0], [3, 2], [0, 3, 5, 1]]
    seeds, asked = [1, 2, 3, 4], []

    def ends(b: int, tokens: Sequence[int]) -> bool:
        asked.append((b, tuple(tokens)))
        return sum(tokens[-2:]) == 4 + b

    free = decoder().generate(prompts, max_new_tokens=60, seeds=seeds).tokens
    streamed: list[list[int]] = [[] for _ in prompts]

    def on_tokens(b: int, tokens: list[int], kinds: list[Kind]) -> None:
        streamed[b] += tokens

    result = decoder().generate(
        prompts, max_new_tokens=60, seeds=seeds, stop=ends, on_tokens=on_tokens
    )
    expected, questions = [], set()
    for b, (prompt, new) in enumerate(zip(prompts, free, strict=True)):
        whole = [tuple(prompt + new[: n + 1]) for n in range(len(new))]
        stops = [n for n, tokens in enumerate(whole) if sum(tokens[-2:]) == 4 + b]
        count = stops[0] + 1 if stops else len(new)
        expected.append(new[:count])
        questions |= {(b, tokens) for tokens in whole[:count]}
    assert result.tokens == streamed == expected
    assert set(asked) == questions
    assert len(asked) == len(questions)
    assert result.statistics.tokens == sum(map(len, expected)) < 4 * 60


def test_end_tokens_end_without_a_question() -> None:
    asked = []

    def never(b: int, tokens: Sequence[int]) -> bool:
        asked.append(tokens[-1])
        return False

    options: dict[str, Any] = {"max_new_tokens": 40, "seeds": 5, "eos": {1, 2}}
    result = decoder().generate([[4], [3, 3]], **options, stop=never)
    assert result.tokens == decoder().generate([[4], [3, 3]], **options).tokens
    assert not {1, 2} & set(asked)
