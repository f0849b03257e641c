"""A drafter without a distribution: the text's own n-grams, verified by the demo's target.

    python examples/ngram_drafter.py        (needs transformers, of the extra [demo])

What followed the last occurrence of the newest tokens is drafted again. Such a draft has no
distribution: q is one-hot on the drafted token, and the output still has the target's.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rdk_cuda
from rdk_cuda import Affinity, Draft, Vocabulary
from rdk_cuda.integrations.huggingface import HuggingFaceModel

K, LONGEST, NEW_TOKENS = 8, 3, 48  # drafts in a step, tokens of an n-gram, tokens to generate
DIRECTORY = Path(__file__).parent / "demo" / "models" / "target"
PROMPT = """def test_addition(self):
    self.assertEqual(1 + 1, 2)
    self.assertEqual(1 + 2, 3)
    self.assertEqual("""


def ngram_draft(tokens: list[int]) -> list[int]:
    """Up to K tokens that followed the latest earlier occurrence of the longest suffix."""
    for n in range(LONGEST, 0, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n :][:K]
    return []


def generate(target: HuggingFaceModel, tokens: list[int], temperature: float) -> list[int]:
    """Continue the text by at least NEW_TOKENS tokens."""
    affinity = Affinity.intersection(Vocabulary.identity(target.vocabulary_size))  # of no effect
    prompt, passes = len(tokens), 0
    target.reset(1)
    while len(tokens) < prompt + NEW_TOKENS:
        drafts, unread = ngram_draft(tokens), tokens[target.lengths[0] :]
        logits = target.feed([unread + drafts], keep=[len(drafts) + 1]).logits
        drafted = torch.tensor([drafts], dtype=torch.int64)
        draft = Draft.without_distribution(drafted, seeds=[7], positions=len(tokens))
        decided, accepted, _ = rdk_cuda.verify(logits, draft, affinity, temperature)
        tokens = tokens + decided[0, : int(accepted) + 1].tolist()
        target.rollback([len(tokens) - 1])  # forget rejected drafts; the newest token is unread
        passes += 1
    print(f"temperature {temperature}: {(len(tokens) - prompt) / passes:.2f} tokens per pass")
    return tokens


model = AutoModelForCausalLM.from_pretrained(DIRECTORY, dtype=torch.float32).eval()
prompt = AutoTokenizer.from_pretrained(DIRECTORY).encode(PROMPT)
generate(HuggingFaceModel(model), prompt, 1.0)
greedy = generate(HuggingFaceModel(model), prompt, 0.0)
choices = model(torch.tensor([greedy])).logits[0].argmax(1).tolist()  # after each of its tokens
assert greedy[len(prompt) :] == choices[len(prompt) - 1 : -1]
print(f"the greedy text of {len(greedy) - len(prompt)} tokens is the target's own")
