"""Trees in place of chains: the drafter's likeliest tokens, read by the target in one pass.

    python examples/tree_drafter.py        (needs transformers, of the extra [demo])

The children of a node are not sampled, so they need no q: at each node a token is drawn from the
target, and where it is a child, the walk goes on. The demo's models. (No cache, to be short.)
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import rdk_cuda
from rdk_cuda.decoding.trees import Tree, attention_mask, best_first, depths

NODES, NEW_TOKENS = 8, 48  # of a tree, and to generate
MODELS = Path(__file__).parent / "demo" / "models"
PROMPT = "def test_addition(self):\n    self.assertEqual(1 + 1, 2)\n    self.assertEqual("


def read(model: torch.nn.Module, context: list[int], tree: Tree) -> Tensor:
    """Logits after the root and after every node, `[1, N + 1, V]`."""
    length = len(context)
    seen = attention_mask(tree.parents, length)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    places = torch.cat([torch.arange(length)[None], length + depths(tree.parents)], 1)
    ids = torch.cat([torch.tensor([context]), tree.tokens.clamp(min=0)], 1)
    logits: Tensor = model(ids, attention_mask=mask, position_ids=places).logits
    return logits[:, length - 1 :]


def step(context: list[int], temperature: float) -> list[int]:
    """The tokens that one pass of the target adds."""
    tree = best_first(lambda grown: read(drafter, context, grown)[:, -1].softmax(1), 1, NODES)
    logits, place = read(target, context, tree), len(context)
    tokens, accepted, _ = rdk_cuda.verify_tree(logits, *tree, temperature, seeds=7, positions=place)
    return tokens[0, : int(accepted) + 1].tolist()


def generate(tokens: list[int], temperature: float) -> list[int]:
    """Continue the text by at least NEW_TOKENS tokens."""
    start, passes = len(tokens), 0
    while len(tokens) < start + NEW_TOKENS:
        tokens, passes = tokens + step(tokens, temperature), passes + 1
    print(f"temperature {temperature}: {(len(tokens) - start) / passes:.2f} tokens per pass")
    return tokens


paths = [MODELS / name for name in ("target", "drafter")]
target, drafter = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32) for p in paths)
prompt = AutoTokenizer.from_pretrained(MODELS / "target").encode(PROMPT)
with torch.no_grad():
    generate(prompt, 1.0)
    greedy = generate(prompt, 0.0)
    choices = target(torch.tensor([greedy])).logits[0].argmax(1).tolist()  # after each token
assert greedy[len(prompt) :] == choices[len(prompt) - 1 : -1]
print(f"the greedy text of {len(greedy) - len(prompt)} tokens is the target's own")
