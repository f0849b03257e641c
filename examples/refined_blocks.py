"""Parallel heads on the target's state, refined by an n-gram: blocks as in arXiv:2404.09221.

    python examples/refined_blocks.py   (needs transformers, of the extra [demo])

Head k guesses the k-th next token from one state of the target, blind to those in between. Bigrams
see the last of these alone. Their logits are summed before `draft`, so q depends on what precedes.
"""

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rdk_cuda
from rdk_cuda import Affinity, Draft, Vocabulary
from rdk_cuda.decoding import Continuation, Proposal, Proposer, SpeculativeDecoder, Step
from rdk_cuda.integrations.huggingface import HuggingFaceModel

torch.set_grad_enabled(False)
K, TARGET = 4, Path(__file__).parent / "demo" / "models" / "target"
model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
tokenizer, library = AutoTokenizer.from_pretrained(TARGET), Path(sysconfig.get_path("stdlib"))
files = [(library / name).read_text(encoding="utf-8") for name in ("tarfile.py", "statistics.py")]
text, other = (torch.tensor(tokenizer.encode(file)) for file in files)
prompts = other[2048:8192].view(12, 512)[:, :64].tolist()

# The n-gram: smoothed counts of what follows each token in the text, [V_t, V_d].
seen = torch.bincount(text, minlength=model.config.vocab_size) + 0.1
vocabulary = Vocabulary.most_likely(seen, 1024)
bigrams = (2 * seen / seen.sum())[vocabulary.draft_ids].repeat(len(seen), 1)
for before, after in text.unfold(0, 2, 1):
    bigrams[before] += vocabulary.draft_ids == after

# The heads: a linear map from a state to that of k tokens further on, and there the target's head.
states = model.model(text[:6144].view(-1, 512)).last_hidden_state
rows = model.lm_head.weight[vocabulary.draft_ids].T
shifted = [states[:, k : k + 512 - K].flatten(0, 1) for k in range(K + 1)]
heads = [torch.linalg.lstsq(shifted[0], after).solution @ rows for after in shifted[1:]]


class Blocks(Proposer):
    """Tokens 2 to K + 1 behind the newest state; the target has decided token 1 by then."""

    drawn_with = Affinity.intersection(vocabulary)

    def __init__(self, parallel: float, ngram: float) -> None:
        self.parallel, self.ngram = parallel, ngram

    def reset(self, batch_size: int) -> None:
        self.states = [torch.zeros(1, len(rows))] * batch_size  # one before anything is read

    def observe(self, states: Sequence[torch.Tensor] | None) -> None:
        self.states = [torch.cat(both) for both in zip(self.states, states or (), strict=True)]

    def rollback(self, lengths: Sequence[int]) -> None:
        self.states = [own[: n + 1] for own, n in zip(self.states, lengths, strict=True)]

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        state = torch.stack([own[-1] for own in self.states])
        last, drafts = torch.tensor([s.tokens[-1] for s in sequences]), list[Draft]()
        link: Any = {name: getattr(step, name) for name in ("seeds", "positions", "temperature")}
        for head in heads:
            logits = self.parallel * state @ head + self.ngram * bigrams[last].log()
            drafts.append(rdk_cuda.draft(logits, self.drawn_with, **link))
            last, link = drafts[-1].tokens[:, 0], {"after": drafts[-1]}
        return Proposal.drawn(Draft.join(drafts), step)


target = HuggingFaceModel(model, state_layers=[model.config.num_hidden_layers])
for name, weights in {"n-gram": (0, 1), "heads": (1, 0), "refined heads": (1, 0.5)}.items():
    decoder = SpeculativeDecoder(target, proposer=Blocks(*weights))
    statistics = decoder.generate(prompts, max_new_tokens=64, seeds=7).statistics
    print(f"{name}: {statistics.mean_accepted_length:.2f} of {K} drafts accepted in a step")
tokens, *_ = decoder.generate(prompts[:1], max_new_tokens=32, temperature=0)
choices = model(torch.tensor([prompts[0] + tokens[0]])).logits[0].argmax(1).tolist()
assert tokens[0] == choices[len(prompts[0]) - 1 : -1]
print(f"the greedy text of {len(tokens[0])} tokens is the target's own")
