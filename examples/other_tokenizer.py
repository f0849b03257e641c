"""A drafter with a tokenizer of its own, a table of bigrams, for the demo's target.

    python examples/other_tokenizer.py        (needs transformers, of the extra [demo])

It reads the target's text in its own tokens. What it drafts greedily is put into the target's by
string-level exact match; what it draws goes through `Affinity.between`. The prompts are one batch.
"""

import inspect
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from rdk_cuda.decoding import Output, SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel

TARGET = Path(__file__).parent / "demo" / "models" / "target"
TEXT = "\n".join(p.read_text("utf-8") for p in sorted(Path(inspect.__file__).parent.glob("*.py")))

ours = Tokenizer(models.BPE())
ours.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
ours.decoder = decoders.ByteLevel()
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=letters, show_progress=False)
ours.train_from_iterator([TEXT[:400_000]], trainer)
ids, counts = torch.tensor(ours.encode(TEXT[:2_000_000]).ids), torch.full((2000, 2000), 0.01)
counts.index_put_((ids[:-1], ids[1:]), torch.ones(len(ids) - 1), accumulate=True)


class _Bigrams:  # a rdk_cuda.decoding.CausalModel, as HuggingFaceModel(drafter) is
    device, context, vocabulary_size, lengths = torch.device("cpu"), math.inf, 2000, list[int]()

    def reset(self, batch_size: int) -> None:
        self.read: list[list[int]] = [[0] for _ in range(batch_size)]

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        self.read = [read + list(new) for read, new in zip(self.read, tokens, strict=True)]
        return Output(counts[[read[-1] for read in self.read], None].log())

    def rollback(self, lengths: Sequence[int]) -> None:
        self.read = [read[: 1 + length] for read, length in zip(self.read, lengths, strict=True)]


target = HuggingFaceModel(AutoModelForCausalLM.from_pretrained(TARGET))
theirs = AutoTokenizer.from_pretrained(TARGET)
prompts = [
    theirs.encode(text) for text in ("import sys\n\nfor name in", "class Ключ:  # 🔑 東京\n")
]
decoder = SpeculativeDecoder(target, _Bigrams(), tokenizer=theirs, drafter_tokenizer=ours)
for T in (1.0, 0.0):
    new, counted, _ = decoder.generate(prompts, max_new_tokens=48, temperature=T, seeds=[1, 2])
    print(f"temperature {T}: {counted.tokens / counted.target_passes:.2f} tokens per pass")
alone = SpeculativeDecoder(target, draft_length=0)
assert new == alone.generate(prompts, max_new_tokens=48, temperature=0.0).tokens
print(f"the greedy text of {sum(map(len, new))} tokens is the target's own")
