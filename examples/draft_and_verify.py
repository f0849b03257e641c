"""A batched custom decoder on `rdk_cuda.draft` and `rdk_cuda.verify`, with virtual tokens.

    python examples/draft_and_verify.py

Nothing here is as wide as the target's vocabulary but the target's own logits. Random numbers are
made of each sequence's seed and positions, so what it says does not depend on its batch.
"""

from typing import Any

import torch

import rdk_cuda
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.drafter import prune_head

V, D, KEPT, CLUSTERS, K = 400, 16, 80, 20, 4

# Toy models: a hidden state [D] for each last token, and a head [V, D]. The drafter's states are a
# poor copy; its head keeps KEPT rows, and one row for each cluster of pruned tokens.
torch.manual_seed(0)
states, head = torch.randn(V, D), torch.randn(V, D)
draft_states = states + 0.3 * torch.randn(V, D)
mean_probs = torch.softmax(states @ head.T, 1).mean(0)
vocabulary = Vocabulary.most_likely(mean_probs, KEPT)
clusters = torch.full((V,), -1)  # rdk_cuda.calibration.cluster_pruned_tokens finds better ones
clusters[vocabulary.pruned] = torch.arange(V - KEPT) % CLUSTERS
affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
small_head, _ = prune_head(head, None, vocabulary, virtual=affinity)


def generate(prompts: list[int], seeds: list[int], steps: int, temperature: float) -> Any:
    """The texts after one-token prompts, and the mean number of accepted drafts."""
    texts, count = [[token] for token in prompts], 0
    for _ in range(steps):
        # The step's key is made of the seed and the position of the step's first token.
        start, drafts = [len(text) for text in texts], []
        link: dict[str, Any] = {"seeds": seeds, "positions": start, "temperature": temperature}
        read = [torch.tensor([text[-1] for text in texts])]
        for _ in range(K):
            drafts.append(rdk_cuda.draft(draft_states[read[-1]] @ small_head.T, affinity, **link))
            read.append(drafts[-1].tokens[:, 0])
            link = {"after": drafts[-1]}
        target_logits = states[torch.stack(read, 1)] @ head.T  # [B, K + 1, V]
        tokens, accepted, _ = rdk_cuda.verify(target_logits, drafts, affinity, temperature)
        for text, row, n in zip(texts, tokens.tolist(), accepted.tolist(), strict=True):
            text += row[: n + 1]
        count += int(accepted.sum())
    return texts, count / steps / len(texts)


texts, accepted = generate([5, 17, 3], seeds=[1, 2, 3], steps=100, temperature=1.0)
print(f"temperature 1: {accepted:.2f} of {K} drafts accepted in a step")
assert generate([17], seeds=[2], steps=100, temperature=1.0)[0] == [texts[1]]  # alone, the same
(greedy,), accepted = generate([17], seeds=[2], steps=100, temperature=0.0)
print(f"temperature 0: {accepted:.2f} of {K} drafts accepted in a step")
assert greedy[1:] == [int((states[token] @ head.T).argmax()) for token in greedy[:-1]]
print(f"the greedy text of {len(greedy)} tokens is the target's own")
