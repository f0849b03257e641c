"""SGLang's links between nodes, as parents."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdk_cuda.labs.sglang_trees import parents_of


def links_of(parents: list[int]) -> tuple[Tensor, Tensor]:
    """SGLang's arrays: node i + 1 is ours, and siblings are in order."""
    first = [-1] * (len(parents) + 1)
    following = [-1] * (len(parents) + 1)
    newest: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent in newest:
            following[newest[parent] + 1] = node + 1
        else:
            first[parent + 1] = node + 1
        newest[parent] = node
    return torch.tensor(first), torch.tensor(following)


def test_parents_of_first_children_and_next_siblings() -> None:
    random = torch.Generator().manual_seed(3)
    trees = [
        [int(torch.randint(-1, node, (), generator=random)) if node else -1 for node in range(63)]
        for _ in range(20)
    ]
    trees += [[node - 1 for node in range(63)], [-1] * 63]
    links = [torch.stack(part) for part in zip(*map(links_of, trees), strict=True)]
    assert parents_of(*links).tolist() == trees
    assert parents_of(links[0].int(), links[1].int()).dtype == torch.int32


def test_links_that_lead_nowhere_make_no_children() -> None:
    """And circles of siblings end."""
    none = torch.full((1, 4), -1)
    assert parents_of(none, none).tolist() == [[-2, -2, -2]]
    assert parents_of(torch.tensor([[2, 99, -7, -1]]), none).tolist() == [[-2, -1, -2]]
    circle = torch.tensor([[-1, 2, 1, 3]])
    assert set(parents_of(torch.tensor([[1, -1, -1, -1]]), circle)[0].tolist()) <= {-1, -2}
    with pytest.raises(ValueError, match=r"parents_of: retrieve_next_token has shape \[4\]"):
        parents_of(torch.zeros(4), none)
    with pytest.raises(ValueError, match="parents_of: retrieve_next_sibling"):
        parents_of(none, none[:, :-1])
