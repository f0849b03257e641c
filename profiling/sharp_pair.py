"""A second, sharper pair of models: the demo's two, mixed with n-grams and with their contexts.

    target'  = 0.25 target  + 0.2 trigrams + 0.55 cache, which matches up to two tokens
    drafter' = 0.25 drafter + 0.2 bigrams  + 0.55 cache, which matches one

No training: the n-grams are counted on the text that the models were trained on, never on held-out
files. The shares are chosen so that on held-out text the whole drafter is accepted about as often
as that of a real pair (0.8), and that the target is as sure of rare tokens as a large model is:
`python -m profiling.sharp_pair` shows what the pair is like.

The sharp drafter has no LM head of its own. Its "hidden state" is its logits, `[.., V]`, and its
full head is the identity, which `LogitsDrafter` applies without building it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.calibration.acceptance import acceptance
from rdk_cuda.calibration.drafter import FullHead, PrunedDrafter
from rdk_cuda.calibration.reading import Read, Reading, read_models
from rdk_cuda.calibration.windows import cut_windows
from rdk_cuda.demo.corpus import held_out_files, read_text, training_files
from rdk_cuda.dynamic import Contexts

from .context_models import ContextCache, NGrams

__all__ = ["LogitsDrafter", "Mixture", "sharp_read", "training_documents"]

WINDOW, DECAY, TRUST = 256, 0.99, 0.1  # of the caches
TARGET_MATCHES, DRAFTER_MATCHES = 2, 1
TARGET_ORDER, DRAFTER_ORDER = 3, 2
NGRAM_SHARE, CACHE_SHARE = 0.2, 0.55

Probs = Callable[[Tensor], Tensor]
"""From ids `[B, L]` to the next token's probabilities behind each, `[B, L, V]` float32."""


@dataclass(frozen=True)
class Mixture:
    """A model mixed with n-grams and a cache, `(1 - a - b) p + a p_ngram + b p_cache`."""

    ngrams: Probs
    cache: Probs
    ngram_share: float = NGRAM_SHARE
    cache_share: float = CACHE_SHARE

    def log_probs(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Logarithms of the mixture `[B, L, V]` float32, from the model's logits at the ids."""
        probs = logits.float().softmax(-1).mul_(1 - self.ngram_share - self.cache_share)
        probs.add_(self.ngrams(ids), alpha=self.ngram_share)
        probs.add_(self.cache(ids), alpha=self.cache_share)
        return probs.log_()


def sharp_read(read: Read, full_head: FullHead, documents: Sequence[Sequence[int]]) -> Read:
    """The sharp pair made from a pair: reads log probabilities of its target and its drafter.

    Args:
        read, full_head: the plain pair and its drafter's LM head `[V, d]`.
        documents: token ids to count n-grams on, as `training_documents` gives them.

    Returns:
        A `Read` whose `hidden` `[B, L, V]` is the full logits of the sharp drafter.
    """
    weight, bias = full_head
    size = weight.shape[0]

    def mixture(order: int, matches: int) -> Mixture:
        cache = ContextCache(size, WINDOW, DECAY, matches, TRUST)
        return Mixture(NGrams(documents, size, order).probs, cache.probs)

    target = mixture(TARGET_ORDER, TARGET_MATCHES)
    drafter = mixture(DRAFTER_ORDER, DRAFTER_MATCHES)

    @torch.no_grad()
    def read_sharply(ids: Tensor) -> Reading:
        plain = read(ids)
        logits = torch.nn.functional.linear(plain.hidden, weight, bias)
        return Reading(target.log_probs(plain.target_logits, ids), drafter.log_probs(logits, ids))

    return read_sharply


def training_documents(tokenizer: Any) -> list[list[int]]:
    """The token ids of every file that the demo's models were trained on."""
    texts = [read_text(path) for path in training_files()]
    documents: list[list[int]] = tokenizer(texts, verbose=False)["input_ids"]
    return documents


@dataclass(frozen=True, eq=False)
class LogitsDrafter(PrunedDrafter):
    """A pruned drafter whose hidden state is its full logits, and whose full head is the identity.

    Its columns are those of a `PrunedDrafter` with the head that `prune_head` makes of an identity
    matrix: kept logits, and for a virtual token the mean of its members' logits. So virtual rows
    are always those of the affinity; `weight` and `bias` are not used.
    """

    weight: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def columns(self, full_head: FullHead, hidden: Tensor, contexts: Contexts) -> dict[str, Tensor]:
        """As of a `PrunedDrafter`; the full head is not looked at.

        Args:
            full_head: anything.
            hidden: `[n, V]`, the full drafter's logits.
            contexts: as of a `PrunedDrafter`.
        """
        kept = self.vocabulary.draft_ids
        virtual = self.affinity.expectation(hidden.T, first_row=len(kept)).T.to(hidden.dtype)
        columns = {"draft_logits": torch.cat([hidden[:, kept], virtual], dim=1)}
        if self.dynamic_tokens is not None:
            tokens = self.dynamic_tokens(contexts)
            logits = hidden.gather(1, tokens.long().clamp_min(0))
            columns["dynamic_tokens"] = tokens
            columns["dynamic_logits"] = logits.masked_fill(tokens < 0, -torch.inf)
        return columns


@torch.no_grad()
def averages(
    read: Read, windows: Sequence[Sequence[int]], pruned: Tensor
) -> dict[str, list[float]]:
    """What a pair, whose `hidden` is its drafter's logits, is like on average at T = 1.

    Returns:
        Of target and drafter: `acceptance` between them, `entropy` in nats, `loss` (negative log
        likelihood of the text in nats), the `mass` of pruned tokens and the `surest` one's share
        of that.
    """
    sums: dict[str, list[float]] = {}
    for ids in windows:
        models = [logits[0].float().softmax(-1) for logits in read(torch.tensor([ids]))]
        following = torch.tensor(ids[1:])[:, None]
        for probs in models:
            figures = {
                "acceptance": acceptance(*models),
                "entropy": torch.special.entr(probs).sum(-1),
                "loss": -probs[:-1].gather(1, following).log(),
                "mass": probs[:, pruned].sum(-1),
                "surest": probs[:, pruned].amax(-1),
            }
            for name, figure in figures.items():
                sums.setdefault(name, []).append(float(figure.mean()))
    means = {name: [sum(each[k::2]) / len(windows) for k in (0, 1)] for name, each in sums.items()}
    means["surest"] = [s / m for s, m in zip(means["surest"], means["mass"], strict=True)]
    return means


def table(pairs: dict[str, dict[str, list[float]]]) -> str:
    """One line for each model."""
    names = list(next(iter(pairs.values())))
    lines = ["".join(f"{title:>16}" for title in ("", *names))]
    for pair, figures in pairs.items():
        for place, model in enumerate(("target", "drafter")):
            cells = (f"{figures[name][place]:.3f}" for name in names)
            lines.append("".join(f"{cell:>16}" for cell in (f"{pair} {model}", *cells)))
    return "\n".join(lines)


def show() -> None:
    """Print what the plain and the sharp pair are like on held-out text."""
    from rdk_cuda.commands.models import load_models  # which the [demo] extra brings

    models = load_models(None, None)
    weight, bias = models.drafter_head
    plain = read_models(models.target, models.drafter)
    documents = training_documents(models.tokenizer)

    def plain_logits(ids: Tensor) -> Reading:
        target, hidden = plain(ids)
        return Reading(target, torch.nn.functional.linear(hidden, weight, bias))

    reads = {"plain": plain_logits, "sharp": sharp_read(plain, (weight, bias), documents)}
    everything = torch.tensor([token for ids in documents for token in ids])
    frequencies = everything.bincount(minlength=len(weight)) / len(everything)
    pruned = Vocabulary.most_likely(frequencies, len(weight) // 4).pruned
    held_out = models.tokenizer([read_text(path) for path in held_out_files()])["input_ids"]
    windows = [window.ids for window in cut_windows(held_out, 14 * 384, 384)]
    print(table({name: averages(read, windows, pruned) for name, read in reads.items()}))
    print("pruned: 75 % of the vocabulary, the rarest in the training text")


def main() -> int:
    """Show the pair; Ctrl-C ends it in one line."""
    try:
        show()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
