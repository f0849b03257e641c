"""What the output should be distributed as: the target in float32, without any engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.demo.corpus import held_out_files, read_text

from .pair import TARGET

TOP = 6
FALSE_ALARM = 1e-4  # of each statistical test


def prompts_of(count: int, length: int = 48, target: Path = TARGET) -> list[list[int]]:
    """Spread over modules that the demo's models were not trained on."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    ids = [token for file in held_out_files() for token in tokenizer(read_text(file))["input_ids"]]
    stride = (len(ids) - length) // count
    return [ids[start : start + length] for start in range(0, stride * count, stride)]


def target_probs(logits: Tensor, temperature: float, top_p: float, min_p: float) -> Tensor:
    """A row of logits as a request's parameters make a distribution of it, in float64."""
    probs = (logits.double() / temperature).softmax(-1)
    probs = torch.where(probs < min_p * probs.amax(), 0, probs)
    probs /= probs.sum()
    ordered, order = probs.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered[before >= top_p] = 0
    return torch.zeros_like(probs).scatter(0, order, ordered) / ordered.sum()


class Joint:
    """The distribution of the first tokens after a prompt, in bins.

    A bin is a sequence of likely tokens, or such a sequence and then any other token. Where
    `allowed` of the first tokens returns a list, the next one is one of these, and without one the
    text has ended.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        length: int,
        temperature: float,
        top_p: float = 1.0,
        min_p: float = 0.0,
        model: Any = None,
        allowed: Any = None,
    ) -> None:
        if model is None:
            model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
        self.length, self.bins = length, {}
        level: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(length):
            prefixes = list(level)
            ids = torch.tensor([[*prompt, *prefix] for prefix in prefixes])
            with torch.no_grad():
                logits = model(ids).logits[:, -1]
            following: dict[tuple[int, ...], float] = {}
            for prefix, row in zip(prefixes, logits, strict=True):
                among = None if allowed is None else allowed(prefix)
                if among == []:
                    self.bins[prefix] = level[prefix]
                    continue
                if among is not None:
                    masked = torch.full_like(row, -torch.inf)
                    masked[among] = row[among]
                    row = masked
                probs = target_probs(row, temperature, top_p, min_p)
                likely = probs.topk(TOP if among is None else len(among))
                for p, token in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
                    if p > 0:
                        following[(*prefix, token)] = level[prefix] * p
                self.bins[(*prefix, -1)] = level[prefix] * max(0.0, 1 - float(likely.values.sum()))
            level = following
        self.bins |= level
        self._prefixes = {name[:cut] for name in self.bins for cut in range(1, length + 1)}

    def bin_of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Where a sample belongs."""
        for cut in range(self.length):
            if tuple(tokens[: cut + 1]) not in self._prefixes:
                return (*tokens[:cut], -1)
        return tuple(tokens[: self.length])

    def p_value(self, samples: Sequence[Sequence[int]]) -> float:
        """Of Pearson's test, bins with fewer than 5 expected taken together."""
        return p_value(self.bins, list(map(self.bin_of, samples)))


def assert_joint(drawn: Sequence[Sequence[int]], prompt: Sequence[int], **of: Any) -> None:
    """First tokens have the distribution of the target, and not of a hotter one without limits.

    Args:
        of: of `Joint`, three tokens unless it says `length`; `control`, by which factor higher.
    """
    factor = of.pop("control", 1.3)
    right = {"length": 3} | of
    wrong = right | {"temperature": right["temperature"] * factor, "top_p": 1.0, "min_p": 0.0}
    assert Joint(prompt, **right).p_value(drawn) > FALSE_ALARM
    assert Joint(prompt, **wrong).p_value(drawn) < FALSE_ALARM


class Words:
    """A grammar that lets one of these words through."""

    def __init__(self, words: Sequence[str]) -> None:
        tokenizer = AutoTokenizer.from_pretrained(TARGET)
        self.words, self.eos = words, tokenizer.eos_token_id
        self._texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]

    def allowed(self, prefix: Sequence[int]) -> list[int]:
        """The tokens that may follow."""
        if self.eos in prefix:
            return []
        said = "".join(self._texts[token] for token in prefix)
        begins = lambda text: any(word.startswith(said + text) for word in self.words)  # noqa: E731
        found = [t for t, text in enumerate(self._texts) if text and begins(text)]
        return found + [self.eos] * (said in self.words)

    def after(self, prefix: tuple[int, ...], end: int) -> list[int] | None:
        """The same where the grammar begins behind a token; None before that."""
        return self.allowed(prefix[prefix.index(end) + 1 :]) if end in prefix else None


def p_value(bins: dict[tuple[int, ...], float], samples: Sequence[Sequence[int]]) -> float:
    """That samples so far from what is expected come by chance (Pearson's test)."""
    counts, n = Counter(map(tuple, samples)), len(samples)
    expected = {name: p * n for name, p in bins.items()}
    rest = {name for name, number in expected.items() if number < 5}
    pairs = [(counts[name], number) for name, number in expected.items() if name not in rest]
    together = sum(counts[name] for name in rest), sum(expected[name] for name in rest)
    if together[1] < 1e-6 * n:  # what cannot happen
        return _chance(pairs) if together[0] == 0 else 0.0
    return _chance([*pairs, together])


def two_sample_p_value(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """That two samples of one size are so different by chance; rare ones are taken together."""
    first, second = Counter(map(tuple, some)), Counter(map(tuple, others))
    pairs, rest = [], [0, 0]
    for name in first | second:
        if first[name] + second[name] < 10:
            rest = [rest[0] + first[name], rest[1] + second[name]]
        else:
            pairs.append((first[name], second[name]))
    statistic = sum((a - b) ** 2 / (a + b) for a, b in [*pairs, rest] if a + b)
    return _tail(statistic, len(pairs) + (sum(rest) > 0) - 1)


def _chance(pairs: Sequence[tuple[int, float]]) -> float:
    return _tail(sum((count - e) ** 2 / e for count, e in pairs), len(pairs) - 1)


def _tail(statistic: float, degrees: int) -> float:
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))
