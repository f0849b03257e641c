"""A whole decoding step, drafting and verification, captured in one CUDA graph and replayed.

    python examples/cuda_graph.py

Nothing in a step waits for the host, and all that differs between steps (text, position) lies in
tensors that a step updates in place. Where there is no GPU the same steps run without a graph.
"""

from typing import Any

import torch

import rdk_cuda

B, V, K, STEPS = 3, 400, 4, 50
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)  # toy models: logits of the next token, by the last one
target = 3 * torch.randn(V, V)
vocabulary = rdk_cuda.Vocabulary.most_likely(torch.softmax(target, 1).mean(0), V // 2)
drafter = (target + torch.randn(V, V))[:, vocabulary.draft_ids].to(device)
target, affinity = target.to(device), rdk_cuda.Affinity.intersection(vocabulary).to(device)
temperature = torch.tensor([0.0, 1.0, 1.0], device=device)  # the first sequence is greedy
seeds = torch.tensor([1, 2, 3], device=device)
text = torch.zeros(B, 1 + STEPS * (K + 1), dtype=torch.int64, device=device)  # begins with token 0
position = torch.ones(B, dtype=torch.int64, device=device)  # of each sequence's next token


def step() -> None:
    """Append 1 to K + 1 tokens to every sequence."""
    drafts, read = [], [text.gather(1, position[:, None] - 1)[:, 0]]
    link: dict[str, Any] = {"seeds": seeds, "positions": position, "temperature": temperature}
    for _ in range(K):
        drafts.append(rdk_cuda.draft(drafter[read[-1]], affinity, **link))
        read.append(drafts[-1].tokens[:, 0])
        link = {"after": drafts[-1]}
    tokens, count, _ = rdk_cuda.verify(target[torch.stack(read, 1)], drafts, affinity, temperature)
    # Behind the new tokens stands -1, which the next step writes over.
    text.scatter_(1, position[:, None] + torch.arange(K + 1, device=device), tokens)
    position.add_(count + 1)


def decode(one_step: Any) -> torch.Tensor:
    """The greedy text after STEPS steps of all."""
    position.fill_(1)
    for _ in range(STEPS):
        one_step()
    return text[0, : int(position[0])].clone()


greedy = decode(step)
if device.type == "cuda":
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        step()
    assert torch.equal(decode(graph.replay), greedy)
    print(f"{STEPS} replays of one CUDA graph: the tokens of {STEPS} eager steps")
else:
    print(f"no GPU here: {STEPS} eager steps, nothing was captured")
assert torch.equal(greedy[1:], target[greedy[:-1]].argmax(1))
print(f"the greedy text of {greedy.numel()} tokens is the target's own")
