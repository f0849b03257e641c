"""What is measured: an operator at a shape, and the presets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch

PAIR, OVERLAP = "draft+verify", "overlap+backward"
OPERATORS = ("draft", "verify", PAIR, "redistribute", "gather_logits", OVERLAP)
DTYPES = ("float32", "bfloat16")
PRESETS = ("tiny", "short", "serving", "variants", "training")
SAMPLERS = ("virtual", "pruned", "first-order")
ACCEPTANCES = ("low", "high")
GPT2 = 50257  # tokens: an odd number, so that rows begin anywhere


@dataclass(frozen=True)
class Case:
    """One operator at one shape.

    Attributes:
        operator: one of `OPERATORS`; PAIR is the sampling of a whole decoding step, OVERLAP the
            acceptance rate with its gradient.
        target_size, draft_size: `V_t` and `V_d`, virtual tokens included; of `gather_logits` the
            rows of the head, and nothing.
        batch: sequences, each a row of `draft`, `redistribute`, `gather_logits` and OVERLAP.
        draft_length: K, of `verify` and PAIR.
        columns, hidden_size: C and d of `gather_logits`.
        sampler: the affinity; with `V_d = V_t` the vocabularies are the same.
        acceptance: of `verify` and PAIR, whether drafts are mostly rejected or mostly accepted.
        stats: whether `verify` is given what `draft` returned.
        temperature: the target's and the drafter's.
        target_dtype: of the target's logits; None: `dtype`, as everything else.
    """

    operator: str
    dtype: str
    target_size: int = 128256
    draft_size: int = 32768
    batch: int = 8
    draft_length: int = 0
    columns: int = 0
    hidden_size: int = 0
    sampler: str = "virtual"
    acceptance: str | None = None
    stats: bool = True
    temperature: float = 1.0
    target_dtype: str | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the drafter's logits, head and hidden states."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def torch_target_dtype(self) -> torch.dtype:
        """The dtype of the target's logits."""
        dtype: torch.dtype = getattr(torch, self.target_dtype or self.dtype)
        return dtype

    @property
    def verifies(self) -> bool:
        """Whether the operator reads target logits."""
        return self.operator in ("verify", PAIR)

    @property
    def affinity(self) -> str | None:
        """Its name: that of the sampler, or "identity", or None where there is none."""
        if self.draft_size == 0:
            return None
        return "identity" if self.draft_size == self.target_size else self.sampler

    @property
    def name(self) -> str:
        """Identifies the case in any result file."""
        parts = [self.operator]
        parts += [self.affinity] if self.affinity else []
        for symbol, value in (
            ("Vt", self.target_size),
            ("Vd", self.draft_size),
            ("B", self.batch),
            ("K", self.draft_length),
            ("C", self.columns),
            ("d", self.hidden_size),
        ):
            parts += [f"{symbol}={value}"] if value else []
        parts.append(self.dtype)
        parts += [f"target={self.target_dtype}"] if self.target_dtype else []
        parts += [f"T={self.temperature:g}"] if self.temperature != 1 else []
        parts += [self.acceptance] if self.acceptance else []
        return " ".join(parts) + ("" if self.stats else " without-stats")


def preset_cases(preset: str, device: str, sampler: str = "virtual") -> list[Case]:
    """The cases of a preset, each once.

    tiny: a look whether it runs. short: at most a minute on a GPU. serving: the shapes of a model
    of 8 B parameters. variants: a few of those next to another temperature, other dtypes, and a
    vocabulary whose rows begin anywhere. training: α of 512 rows with its
    gradient.
    """
    presets = {
        "tiny": _tiny,
        "short": _short,
        "serving": _serving,
        "variants": _variants,
        "training": _training,
    }
    chosen = presets[preset](device)
    return list(dict.fromkeys(replace(case, sampler=sampler) for case in chosen))


def _tiny(device: str) -> Iterator[Case]:
    for operator in OPERATORS:
        yield from _with_acceptances(
            _sized(operator, "float32", target_size=300, draft_size=100, batch=2, length=2)
        )


def _short(device: str) -> Iterator[Case]:
    if device == "cpu":
        yield from (case for case in _serving(device) if case.dtype == "bfloat16")
        return
    for operator, batch in product(("draft", "verify"), (1, 64, 256)):
        yield from _with_acceptances(_sized(operator, "bfloat16", batch=batch, length=5))
    for operator in (PAIR, "redistribute", "gather_logits"):
        yield from _with_acceptances(_sized(operator, "bfloat16", batch=64, length=5))


def _serving(device: str) -> Iterator[Case]:
    """V_t 128256, V_d 32768; on the CPU batch 8 and K 4, on a GPU bfloat16 and K 5."""
    if device == "cpu":
        for operator, dtype in product((PAIR, "verify", "draft", "redistribute"), DTYPES):
            yield from _with_acceptances(_sized(operator, dtype, batch=8, length=4))
        yield replace(
            _sized("verify", "float32", batch=8, length=4), acceptance="high", stats=False
        )
        for dtype in DTYPES:
            yield _sized("gather_logits", dtype, batch=8)
        return
    for operator, batch in product(("draft", "verify", PAIR), (1, 8, 64, 256)):
        yield from _with_acceptances(_sized(operator, "bfloat16", batch=batch, length=5))
    yield replace(_sized("verify", "bfloat16", batch=64, length=5), acceptance="high", stats=False)
    for batch in (1, 64):
        yield _sized("redistribute", "bfloat16", batch=batch)
        yield _sized("gather_logits", "bfloat16", batch=batch)


def _variants(device: str) -> Iterator[Case]:
    batches, length = ((8,), 4) if device == "cpu" else ((1, 64), 5)
    for operator, batch in product(("draft", "verify"), batches):
        usual = _sized(operator, "bfloat16", batch=batch, length=length)
        cases = [usual, replace(usual, temperature=0.7), replace(usual, dtype="float32")]
        if usual.verifies:
            cases.append(replace(usual, target_dtype="float32"))
        cases.append(replace(usual, target_size=GPT2, draft_size=12565))
        yield from (replace(case, acceptance="high" if case.verifies else None) for case in cases)


def _training(device: str) -> Iterator[Case]:
    for dtype in DTYPES:
        yield _sized(OVERLAP, dtype, batch=512)


def _with_acceptances(case: Case) -> Iterator[Case]:
    for acceptance in ACCEPTANCES if case.verifies else (None,):
        yield replace(case, acceptance=acceptance)


def _sized(
    operator: str,
    dtype: str,
    *,
    target_size: int = 128256,
    draft_size: int = 32768,
    batch: int = 8,
    length: int = 0,
) -> Case:
    """A case with the sizes that its operator has."""
    if operator == "gather_logits":
        # The head of a model of 8 B parameters, and as many tokens as a context brings.
        columns, hidden_size = (128, 4096) if target_size > 1000 else (8, 32)
        return Case(
            operator, dtype, target_size, 0, batch, columns=columns, hidden_size=hidden_size
        )
    length = length if operator in ("verify", PAIR) else 0
    return Case(operator, dtype, target_size, draft_size, batch, draft_length=length)
