"""Who sees whom in a tree, and how deep its nodes are."""

from __future__ import annotations

import torch

from rdk_cuda.decoding.trees import ancestors, depths

PARENTS = torch.tensor([[-1, 0, -1, 1, 0, 2], [-1, -1, -1, 2, 3, 4]])


def test_a_node_sees_its_branch_and_itself() -> None:
    seen = [[row.nonzero()[:, 0].tolist() for row in tree] for tree in ancestors(PARENTS)]
    assert seen[0] == [[0], [0, 1], [2], [0, 1, 3], [0, 4], [2, 5]]
    assert seen[1] == [[0], [1], [2], [2, 3], [2, 3, 4], [2, 3, 4, 5]]


def test_depths_count_from_the_root_s_children() -> None:
    assert depths(PARENTS).tolist() == [[0, 1, 0, 2, 1, 1], [0, 0, 0, 1, 2, 3]]
