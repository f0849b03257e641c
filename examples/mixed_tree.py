"""A custom decoder that verifies trees of fixed and drawn tokens, on the bare operators.

    python examples/mixed_tree.py

A node's children are the drafter's likeliest token, fixed, and one drawn from the drafter without
it. Two levels make a tree of six nodes for two passes of the drafter.
"""

from typing import Any

import torch

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary

V, D, KEPT = 400, 16, 200

# Toy models: logits for each last token. The drafter is a poor copy with KEPT of the V columns.
torch.manual_seed(0)
target = torch.randn(V, D) @ torch.randn(D, V)
vocabulary = Vocabulary.most_likely(target.softmax(1).mean(0), KEPT)
drafter = target[:, vocabulary.draft_ids] + 2 * torch.randn(V, KEPT)
affinity = Affinity.intersection(vocabulary)
PARENTS = torch.tensor([-1, -1, 0, 0, 1, 1])  # two children of the root, and two of each of them
ROWS = torch.tensor([[-1, 0, -1, 1, -1, 2]])  # -1: fixed; or the drafter's row it was drawn from
BRANCHES = torch.tensor([[0, 1]])  # random words of their own for what is drawn at one depth


def children(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The fixed child of each row [n, KEPT], and the rows without it."""
    column = rows.argmax(1, keepdim=True)
    return vocabulary.draft_ids[column[:, 0]], rows.scatter(1, column, -torch.inf)


def generate(token: int, seed: int, steps: int, temperature: float) -> tuple[list[int], float]:
    """The text after a token, and the mean number of accepted nodes."""
    text, count = [token], 0
    for _ in range(steps):
        fixed, rows = children(drafter[text[-1:]])
        first = rdk_cuda.draft(rows[None], affinity, temperature, seeds=seed, positions=len(text))
        level = torch.stack([fixed, first.tokens[0]], 1).flatten()  # nodes 0 and 1
        fixed, rows = children(drafter[level])
        second = rdk_cuda.draft(rows[None], affinity, after=first, ahead=1, branches=BRANCHES)
        nodes = torch.cat([level, torch.stack([fixed, second.tokens[0]], 1).flatten()])
        drafted: Any = {"draft": [first, second], "draft_rows": ROWS, "affinity": affinity}
        rows = target[[text[-1], *nodes.tolist()]][None]
        tokens, accepted, _ = rdk_cuda.verify_tree(
            rows, nodes[None], PARENTS, temperature, **drafted, method="block"
        )
        text += tokens[0, : int(accepted) + 1].tolist()
        count += int(accepted)
    return text, count / steps


for T in (1.0, 0.0):
    text, accepted = generate(5, seed=7, steps=200, temperature=T)
    print(f"temperature {T}: {accepted:.2f} of 2 levels accepted in a step")
assert text[1:] == [int(target[token].argmax()) for token in text[:-1]]
print(f"the greedy text of {len(text)} tokens is the target's own")
