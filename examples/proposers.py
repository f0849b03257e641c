"""Proposers in place of a chain of drawn tokens: the text's own n-grams, and trees of a drafter.

    python examples/proposers.py        (needs transformers, of the extra [demo])

N-grams are copied, so they need no q. Of a tree's children at most one is drawn, above temperature
0, and judged by its q; the others are fixed. The target reads all nodes in one pass. The demo's
models.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterTree, NGrams, Proposer, SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel

MODELS = Path(__file__).parent / "demo" / "models"
PROMPT = """def test_addition(self):
    self.assertEqual(1 + 1, 2)
    self.assertEqual(1 + 2, 3)
    self.assertEqual("""

paths = [MODELS / name for name in ("target", "drafter")]
target, drafter = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32) for p in paths)
prompt = AutoTokenizer.from_pretrained(MODELS / "target").encode(PROMPT)
affinity = Affinity.intersection(Vocabulary.identity(target.config.vocab_size))
proposers: dict[str, Proposer] = {
    "n-grams": NGrams(draft_length=8),
    "trees": DrafterTree(HuggingFaceModel(drafter), affinity, nodes=8),
}
for name, proposer in proposers.items():
    decoder = SpeculativeDecoder(HuggingFaceModel(target), proposer=proposer)
    for temperature in (1.0, 0.0):
        (new,), statistics, _ = decoder.generate(
            [prompt], max_new_tokens=48, temperature=temperature, seeds=[7]
        )
        rate = statistics.tokens / statistics.target_passes
        print(f"{name}, temperature {temperature}: {rate:.2f} tokens per pass")
    with torch.no_grad():  # after each token of the greedy text, which came last
        choices = target(torch.tensor([prompt + new])).logits[0].argmax(1).tolist()
    assert new == choices[len(prompt) - 1 : -1]
    print(f"the greedy text of {len(new)} tokens is the target's own")
