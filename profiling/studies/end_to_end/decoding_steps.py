"""A decoding step as `rdk_cuda.decoding.SpeculativeDecoder` takes it, with a watch on its parts.

The models' passes, the sampling and the caches are the real ones. Only what is verified is not the
target's logits but others in their place, made so that as many drafts are accepted as calibration
measured: random models agree on nothing, and how much of the target a verification reads depends
on how far it comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from ...bench import eager
from ...bench.workloads import target_like
from ...peers.samplers import Decided, gathered
from .model_pairs import HEADS, Head, Pair

BODY, HEAD, DRAFT = "drafter body", "drafter head", "draft"
TARGET, VERIFY, CACHE = "target", "verify", "cache"
PARTS = (BODY, HEAD, DRAFT, TARGET, VERIFY, CACHE)
"""`draft` and `verify` are sampling; `cache` is what rolling back costs, masks included."""

UNTIMED = "untimed"
LAST_TOKEN = 1  # decided and not read yet, in every sequence


class Watch:
    """Seconds between laps, by CUDA events where the work is on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.running = False
        self.laps: list[tuple[str, Any]] = []

    def start(self) -> None:
        """Start to measure."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.running, self.laps = True, [(UNTIMED, self._now())]

    def lap(self, part: str) -> None:
        """Count the time since the last lap for a part."""
        if self.running:
            self.laps.append((part, self._now()))

    def stop(self) -> dict[str, float]:
        """Seconds of each part."""
        self.running = False
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for (_, before), (part, after) in zip(self.laps, self.laps[1:], strict=False):
            passed = (
                after - before if isinstance(after, float) else before.elapsed_time(after) / 1e3
            )
            seconds[part] = seconds.get(part, 0.0) + passed
        seconds.pop(UNTIMED, None)
        return seconds

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class WithOperators:
    """Both halves of sampling a step, one draft at a time, by rdk_cuda.draft and .verify."""

    def __init__(self, affinity: Affinity, batch: int) -> None:
        self.affinity = affinity
        self.seeds = torch.arange(batch, device=affinity.device)

    def begin(self, position: int) -> None:
        """Begin a new step."""
        self.drafts: list[rdk_cuda.Draft] = []
        self.link: dict[str, Any] = {"seeds": self.seeds, "positions": position}

    def draft(self, logits: Tensor) -> Tensor:
        """Tokens `[B]` of logits `[B, V_d]`."""
        self.drafts.append(rdk_cuda.draft(logits, self.affinity, **self.link))
        self.link = {"after": self.drafts[-1]}
        return self.drafts[-1].tokens[:, 0]

    def verify(self, target_logits: Tensor) -> Decided:
        """Decide a step from target logits `[B, K + 1, V_t]`."""
        verified = rdk_cuda.verify(target_logits, self.drafts, self.affinity)
        return verified.tokens, verified.num_accepted


class WithTorch:
    """The fewest operations of PyTorch (peers.gathered), q as wide as the vocabulary."""

    def __init__(self, affinity: Affinity, batch: int) -> None:
        self.link = gathered(affinity)
        self.ones = torch.ones(batch, device=affinity.device)

    def begin(self, position: int) -> None:
        """Begin a new step."""
        self.tokens: list[Tensor] = []
        self.q: list[Tensor] = []

    def draft(self, logits: Tensor) -> Tensor:
        """Tokens `[B]` of logits `[B, V_d]`."""
        token, q = self.link(logits, self.ones)
        self.tokens.append(token)
        self.q.append(q)
        return token

    def verify(self, target_logits: Tensor) -> Decided:
        """Decide a step from target logits `[B, K + 1, V_t]`."""
        q, tokens = torch.stack(self.q, 1), torch.stack(self.tokens, 1)
        return eager.verify(target_logits, q, tokens, self.ones)


SAMPLINGS: dict[str, type[WithOperators] | type[WithTorch]] = {
    "PyTorch": WithTorch,
    "rdk_cuda": WithOperators,
}


@dataclass(frozen=True)
class Variant:
    """A head and a way to sample."""

    head: Head
    sampling: str


VARIANTS = tuple(Variant(head, sampling) for head in HEADS for sampling in SAMPLINGS)


class Steps:
    """Takes steps of every variant from the same context, which every step leaves as it was.

    Args:
        noises: by head, how far what is verified is from q (`noise_for`).
    """

    def __init__(
        self,
        pair: Pair,
        *,
        context: int,
        draft_length: int,
        noises: dict[Head, float],
        heads: Sequence[Head] = HEADS,
    ) -> None:
        self.device = pair.full_head.device
        self.watch = Watch(self.device)
        self.context, self.draft_length, self.noises = context, draft_length, noises
        self.target = HuggingFaceModel(pair.target, return_hidden=True)
        full, self.vocabulary = pair.full_head, pair.full_head.shape[0]
        self.drafters = {
            head: HuggingFaceModel(pair.drafter, head=head.weight(full)) for head in heads
        }
        self.affinities = {head: head.affinity(self.vocabulary).to(self.device) for head in heads}
        self.spreads = {head: gathered(each) for head, each in self.affinities.items()}
        for model, part in ((pair.drafter, BODY), (pair.target, TARGET)):
            body = model.base_model
            body.register_forward_pre_hook(lambda *_: self.watch.lap(CACHE))
            body.register_forward_hook(lambda *_, part=part: self.watch.lap(part))

    def begin(self, batch: int) -> None:
        """Read the context in all models, for `batch` sequences."""
        self.batch, self.turn = batch, 0
        self.random = torch.Generator(self.device).manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (batch, self.context)).tolist()
        for model in (self.target, *self.drafters.values()):
            model.reset(batch)
            model.feed(ids, [0] * batch)
        self.samplings = {
            (head, name): make(affinity, batch)
            for head, affinity in self.affinities.items()
            for name, make in SAMPLINGS.items()
        }

    @torch.no_grad()
    def take(self, variant: Variant) -> tuple[dict[str, float], float]:
        """Seconds of each part, and accepted drafts of a sequence."""
        drafter, target, watch = self.drafters[variant.head], self.target, self.watch
        sampling = self.samplings[variant.head, variant.sampling]
        sampling.begin(self.context + self._next_turn())
        drafted: list[list[int]] = [[LAST_TOKEN] for _ in range(self.batch)]
        seen = []
        watch.start()
        for _ in range(self.draft_length):
            logits = drafter.feed([each[-1:] for each in drafted], [1] * self.batch).logits[:, 0]
            watch.lap(HEAD)
            for each, token in zip(drafted, sampling.draft(logits).tolist(), strict=True):
                each.append(token)
            watch.lap(DRAFT)
            seen.append(logits)
        logits = target.feed(drafted, [self.draft_length + 1] * self.batch).logits
        watch.lap(TARGET)
        verified = self._verified_in_place_of(logits, seen, variant.head)
        watch.lap(UNTIMED)
        _, num_accepted = sampling.verify(verified)
        accepted = num_accepted.tolist()
        watch.lap(VERIFY)
        for model in (drafter, target):
            model.rollback([self.context] * self.batch)
        watch.lap(CACHE)
        return watch.stop(), math.fsum(accepted) / self.batch

    @torch.no_grad()
    def take_alone(self) -> dict[str, float]:
        """The target without a drafter: one pass, one token."""
        self.watch.start()
        logits = self.target.feed([[LAST_TOKEN]] * self.batch, [1] * self.batch).logits[:, 0]
        self.watch.lap(TARGET)
        torch.multinomial(torch.softmax(logits.float(), 1), 1).tolist()
        self.watch.lap(VERIFY)
        self.target.rollback([self.context] * self.batch)
        self.watch.lap(CACHE)
        return self.watch.stop()

    def _next_turn(self) -> int:
        self.turn += 1
        return self.turn

    def _verified_in_place_of(self, logits: Tensor, seen: list[Tensor], head: Head) -> Tensor:
        ones = torch.ones(self.batch, device=self.device)
        q = torch.stack([self.spreads[head](each, ones)[1] for each in seen])
        made = target_like(q, self.noises[head], self.random)
        return made.to(logits.dtype).view(logits.shape)


def noise_for(accepted_length: float, draft_length: int) -> float:
    """The noise of `workloads.target_like` at which K drafts are accepted that far on average.

    With one rate for all drafts the mean is `a + a^2 + ... + a^K`, and noise s leaves a rate of
    about `2 Phi(-s / 2)`.

    Example:
        >>> f"{noise_for(3.4, 4):.2f} {noise_for(0.5, 4):.2f}"
        '0.16 1.92'
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        mean = math.fsum(rate**k for k in range(1, draft_length + 1))
        low, high = (rate, high) if mean < accepted_length else (low, rate)
    return -2 * NormalDist().inv_cdf(max(low, 1e-12) / 2)
