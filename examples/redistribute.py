"""A custom decoder on one operator: `torch.ops.rdk.redistribute`, all else in plain PyTorch.

    python examples/redistribute.py

The drafter predicts a quarter of the target's tokens; q is its distribution over all of them, and
what follows can be changed at will. The price is a row of q for each draft, as wide as the target's
vocabulary; draft_and_verify.py goes without.
"""

from itertools import pairwise

import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary

V, KEPT, K = 400, 100, 4  # the target's tokens, the drafter's, drafts in each step

# Toy models: logits of the next token, by the last one. Any function from tokens to logits will do.
torch.manual_seed(0)
target = 3 * torch.randn(V, V)
mean_probs = torch.softmax(target, 1).mean(0)
vocabulary = Vocabulary.most_likely(mean_probs, KEPT)
drafter = (target + torch.randn(V, V))[:, vocabulary.draft_ids]
affinity = Affinity.first_order(vocabulary, mean_probs, tau=0.1, keep=0.9)


def probs(logits: Tensor, temperature: float) -> Tensor:
    """The target's p `[V]`, one-hot at temperature 0."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), V).float()
    return torch.softmax(logits / temperature, 0)


def step(last: int, temperature: float) -> tuple[list[int], int]:
    """The tokens that follow `last`, one more than were accepted, and how many were."""
    drafts, rows = [last], []
    for _ in range(K):
        logits = drafter[drafts[-1]]
        columns = (*affinity.by_target, affinity.row_top)
        rows.append(torch.ops.rdk.redistribute(logits, torch.tensor(temperature), *columns))
        drafts.append(int(rows[-1].multinomial(1)))
    for k, (x, q) in enumerate(zip(drafts[1:], rows, strict=True)):
        p = probs(target[drafts[k]], temperature)
        if torch.rand(()) * q[x] >= p[x]:  # rejected: one token of what q lacks
            return [*drafts[1 : k + 1], int((p - q).clamp(min=0).multinomial(1))], k
    return [*drafts[1:], int(probs(target[drafts[K]], temperature).multinomial(1))], K


for temperature in (1.0, 0.0):
    tokens, accepted, steps = [17], 0, 200
    for _ in range(steps):
        new, n = step(tokens[-1], temperature)
        tokens, accepted = tokens + new, accepted + n
    print(f"temperature {temperature}: {accepted / steps:.2f} of {K} drafts accepted in a step")

for before, after in pairwise(tokens):  # of the greedy text, which came last
    assert after == int(target[before].argmax())
print(f"the greedy text of {len(tokens)} tokens is the target's own")
