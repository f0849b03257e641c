"""Dynamic tokens in the decoder: the hook sees the sequences, its tokens can be drafted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from table_model import TableModel, greedy, random_table
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import Output, SpeculativeDecoder

SIZE = 9
VOCABULARY = Vocabulary([0, 2, 3, 7], SIZE)
PROMPTS = [[1], [4, 4, 8], [7, 2]]
TABLE = random_table(SIZE, seed=0)


def decoder(dynamic: bool) -> SpeculativeDecoder:
    """The drafter is the target itself, but for its four-token head."""
    return SpeculativeDecoder(
        TableModel(TABLE, SIZE),
        TableModel(TABLE[:, VOCABULARY.draft_ids], SIZE),
        Affinity.intersection(VOCABULARY),
        draft_length=3,
        vocabulary=VOCABULARY,
        dynamic_tokens=every_pruned_token if dynamic else None,
        full_head=(TABLE.T.contiguous(), None) if dynamic else None,
    )


def every_pruned_token(contexts: Sequence[Sequence[int]]) -> Tensor:
    return VOCABULARY.pruned.expand(len(contexts), -1)


def test_offering_every_pruned_token_undoes_the_pruning() -> None:
    without = decoder(dynamic=False).generate(PROMPTS, max_new_tokens=60, seeds=1).statistics
    offered = decoder(dynamic=True).generate(PROMPTS, max_new_tokens=60, seeds=1).statistics
    assert without.recovered == 0 < without.corrected
    # Drafter and target have the same distribution now, up to rounding.
    assert offered.corrected == 0
    assert offered.recovered > 0


def test_greedy_output_stays_the_target_s() -> None:
    result = decoder(dynamic=True).generate(PROMPTS, max_new_tokens=30, temperature=0)
    assert result.tokens == [greedy(TableModel(TABLE, SIZE), prompt, 30) for prompt in PROMPTS]


def test_the_hook_sees_sequences_with_the_drafts_so_far() -> None:
    speculative, seen = decoder(dynamic=True), []

    def hook(contexts: Sequence[Sequence[int]]) -> Tensor:
        seen.append([list(context) for context in contexts])
        return torch.full((len(contexts), 2), -1)

    speculative.dynamic_tokens = hook
    speculative.generate(PROMPTS, max_new_tokens=10, seeds=1)
    assert seen[0] == PROMPTS
    for b, prompt in enumerate(PROMPTS):
        assert [len(contexts[b]) - len(prompt) for contexts in seen[:3]] == [0, 1, 2]
        assert seen[2][b][:-1] == seen[1][b]


def test_unused_columns_change_nothing() -> None:
    speculative = decoder(dynamic=True)
    speculative.dynamic_tokens = lambda contexts: torch.full((len(contexts), 5), -1)
    plain = decoder(dynamic=False).generate(PROMPTS, max_new_tokens=40, seeds=2)
    assert speculative.generate(PROMPTS, max_new_tokens=40, seeds=2) == plain


def test_a_drafter_without_hidden_states_is_refused() -> None:
    class Blind(TableModel):
        def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
            return Output(super().feed(tokens, keep).logits)

    speculative = decoder(dynamic=True)
    speculative.drafter = Blind(TABLE[:, VOCABULARY.draft_ids], SIZE)
    with pytest.raises(ValueError, match="dynamic_tokens need a drafter that gives hidden"):
        speculative.generate(PROMPTS, max_new_tokens=3)
