"""Random calls of every operator: valid ones with all kinds of values, then changes to arguments.

Everything is a function of a seed and an index. Sizes are tiny: bounds are as near as they can be.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda._ops.contract import DYNAMIC, IDS, LIMITS, LOGITS, LONG, OPERATORS, Number, shape_of
from rdk_cuda.affinity import Affinity
from tests import generators

from . import changes
from .judge import refusals

LEADING = [(), (1,), (2,), (3,), (7,), (2, 2), (1, 3), (2, 1, 2), (2, 2, 2), (0,), (2, 0)]
TARGET_SIZES = [1, 2, 3, 5, 17, 40]
LARGE = 1030  # a second chunk, rarely: it costs as much as many small ones
KINDS = [*generators.AFFINITIES, "mixed-4"]

ORDINARY_TEMPERATURES = [1.0, 1.0, 0.7, 2.0, 0.0]
TEMPERATURES = [*ORDINARY_TEMPERATURES, -0.0, 1e-45, 1e-30, 1e30, 3e38, -1.0, math.nan, math.inf]
WORST = [0, 1, -1, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63)]
WORST_32 = [0, 1, -1, -2, 2**31 - 1, -(2**31)]
MOST = 2**31 - 2  # drafts of a sequence that are allowed
MAX_DRAFTS = [0, 1, 2, 4, 4, 5, 9, -1, 100, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)]


@dataclass
class Call:
    operator: str
    arguments: dict[str, Any]
    changed: list[str] = field(default_factory=list)  # what was done to a valid call, in words

    def __str__(self) -> str:
        lines = [f"{self.operator}, changed: {', '.join(self.changed) or 'nothing'}"]
        for name, value in self.arguments.items():
            if isinstance(value, Tensor):
                layout = f"{value.dtype} {list(value.shape)} strides {list(value.stride())}"
                shown = f" {value.tolist()}" if value.numel() <= 24 else ""
                lines.append(f"  {name}: {layout}{shown}".replace("torch.", ""))
            else:
                lines.append(f"  {name}: {value}")
        return "\n".join(lines)


def make_call(
    seed: int, index: int, operators: tuple[str, ...], without: frozenset[int] = frozenset()
) -> Call:
    """Argument set ``index``; ``without`` leaves out some of its changes."""
    values = Values(Random(f"{seed}/{index}"))
    operator = values.random.choice(operators)
    make = MAKERS.get(operator)
    call = Call(operator, make(values) if make else by_contract(values, operator))
    original = dict(call.arguments)
    count = values.random.choices([0, 1, 2, 3], [45, 40, 12, 3])[0]
    for i in range(count):
        if i not in without:
            changes.change(call, Random(f"{seed}/{index}/{i}"))
    keep_trusted_values(call, original)
    return call


def keep_trusted_values(call: Call, original: dict[str, Any]) -> None:
    """A changed affinity that is still accepted may be inconsistent, and its values are trusted."""
    if refusals(call.operator, call.arguments):
        return
    for name, rule in OPERATORS[call.operator].tensors.items():
        if rule.affinity:
            call.arguments[name] = original[name]


@functools.cache
def affinity(kind: str, size: int) -> Affinity:
    return generators.affinity(kind, size)


class Values:
    """Random values for arguments: ordinary ones, and now and then the worst."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.generator = torch.Generator().manual_seed(random.getrandbits(63))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def affinity(self) -> Affinity:
        size = LARGE if self.chance(0.01) else self.random.choice(TARGET_SIZES)
        return affinity(self.random.choice(KINDS), size)

    def logits(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        scale = self.random.choice([0.0, 0.5, 2.0, 2.0, 30.0])
        values = torch.randn(shape, generator=self.generator) * scale
        if self.chance(0.1):
            values[torch.rand(shape, generator=self.generator) < 0.5] = -math.inf
        values = values.to(dtype)
        if values.numel() and self.chance(0.2):
            limits = torch.finfo(dtype)
            worst = [math.nan, math.inf, -math.inf, limits.max, limits.min, limits.tiny, -0.0]
            flat = values.view(-1)
            for _ in range(self.random.randint(1, 3)):
                flat[self.random.randrange(flat.numel())] = self.random.choice(worst)
        return values

    def temperatures(self, shape: tuple[int, ...]) -> Tensor:
        choices = TEMPERATURES if self.chance(0.3) else ORDINARY_TEMPERATURES
        values = self.random.choices(choices, k=math.prod(shape))
        return torch.tensor(values, dtype=torch.float32).reshape(shape)

    def integers(self, shape: tuple[int, ...]) -> Tensor:
        """64 bits each."""
        values = [
            self.random.choice(WORST) if self.chance(0.2) else self.random.randint(-(2**63), 2**40)
            for _ in range(math.prod(shape))
        ]
        return torch.tensor(values, dtype=torch.int64).reshape(shape)

    def tokens(self, count: int, size: int, dtype: torch.dtype, worst: float) -> Tensor:
        """Ids below ``size``; a fraction ``worst`` of them unused or out of range."""
        outside = [size, size + 1, *(WORST if dtype == torch.int64 else WORST_32)]
        values = [
            self.random.choice(outside) if self.chance(worst) else self.random.randrange(size)
            for _ in range(count)
        ]
        return torch.tensor(values, dtype=dtype)

    def dynamic(
        self, leading: tuple[int, ...], size: int, dtype: torch.dtype
    ) -> dict[str, Tensor | None]:
        if self.chance(0.4):
            return {"dynamic_tokens": None, "dynamic_logits": None}
        shape = (*leading, self.random.choice([0, 1, 2, 3, 8]))
        tokens = self.tokens(math.prod(shape), size, torch.int32, worst=0.3)
        return {
            "dynamic_tokens": tokens.reshape(shape),
            "dynamic_logits": self.logits(shape, dtype),
        }


def of_affinity(values: Values, operator: str, made: Affinity) -> dict[str, Tensor | None]:
    tensors = {
        name: getattr(made, name)
        for name, rule in OPERATORS[operator].tensors.items()
        if rule.affinity
    }
    without_bias = not made.is_biased and values.chance(0.5)
    return tensors | ({"bias": None} if without_bias else {})


def redistribute(values: Values, operator: str = "redistribute") -> dict[str, Any]:
    made, leading = values.affinity(), values.random.choice(LEADING)
    dtype = values.random.choice(LOGITS)
    arguments = {
        "draft_logits": values.logits((*leading, made.draft_size), dtype),
        "temperature": values.temperatures(leading),
    }
    if operator == "draft":
        arguments |= {"step_keys": values.integers(leading), "positions": values.integers(leading)}
    dynamic = values.dynamic(leading, made.target_size, dtype)
    given: dict[str, Any] = limits(values, leading, made.draft_size)
    if operator == "draft":
        branches = values.tokens(math.prod(leading), 2**24, torch.int32, worst=0.2)
        given |= {"branches": branches.reshape(leading) if values.chance(0.5) else None}
    return {**arguments, **of_affinity(values, operator, made), **dynamic, **given}


def draft(values: Values) -> dict[str, Any]:
    return redistribute(values, "draft")


def draft_step(values: Values) -> dict[str, Any]:
    """Into rows with room for more than are drafted, or with slots, some of them no row's."""
    whole, random = draft(values), values.random
    rows = whole["draft_logits"].reshape(-1, whole["draft_logits"].shape[-1])
    batch, places = len(rows), random.choice([1, 2, 3])
    slots = random.choice([batch, batch, batch + 2, max(batch - 1, 0)])
    limited = any(whole[name] is not None for name in LIMITS)
    flat = {n: whole[n] if whole[n] is None else whole[n].reshape(batch) for n in LIMITS}
    dynamic = {
        n: whole[n] if whole[n] is None else whole[n].reshape(batch, whole[n].shape[-1])
        for n in DYNAMIC
    }

    def memory(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.full((slots, places, *shape), 99, dtype=dtype)

    kept = {
        f"step_{n}": None if tensor is None else memory(tensor.shape[1], dtype=tensor.dtype)
        for n, tensor in dynamic.items()
    }
    ids = values.tokens(batch, max(slots, 1), random.choice([torch.int64, torch.int32]), 0.2)
    unlike = len(set(ids.tolist())) == batch  # two rows of one slot would write to one place
    given = {
        "draft_logits": rows,
        "step_tokens": memory(dtype=torch.int64),
        "step_stats": memory(2 + whole["spread"].shape[1] + limited, dtype=torch.float32),
        "step_keys": torch.full((slots,), 99),
        "step_logits": memory(rows.shape[1], dtype=rows.dtype),
        **kept,
        "place": random.choice([*range(places), places, -1] if values.chance(0.1) else [0]),
        "temperature": whole["temperature"].reshape(batch),
        "seeds": whole["step_keys"].reshape(batch),
        "positions": whole["positions"].reshape(batch),
        **dynamic,
        **flat,
        "slots": ids if unlike and values.chance(0.5) else None,
        "place_id": torch.tensor([random.randint(-1, places)]) if values.chance(0.3) else None,
    }
    return {n: (whole | given)[n] for n in OPERATORS["draft_step"].arguments}


def verify_step(values: Values) -> dict[str, Any]:
    made, random = values.affinity(), values.random
    sequences, places = random.choice([0, 1, 2, 4]), random.choice([1, 2, 4])
    drafts, dtype = random.randint(0, places), random.choice(LOGITS)
    tokens = values.tokens(sequences * drafts, made.target_size, random.choice(IDS), 0.1)
    target = values.logits((sequences * (drafts + 1), made.target_size), random.choice(LOGITS))
    if values.chance(0.5):
        accept(target, tokens, [drafts] * sequences)
    given = truncation(values, sequences, len(target), made.target_size)
    shape = sequences, drafts + 1
    if given["allowed"] is not None:
        given["allowed"] = given["allowed"].unflatten(0, shape)
    stats = draft_stats(values, sequences * places, made.rank)
    return {
        "target_logits": target.unflatten(0, shape),
        "draft_logits": values.logits((sequences, places, made.draft_size), dtype),
        "draft_stats": stats.unflatten(0, (sequences, places)),
        "draft_token_ids": tokens.reshape(sequences, drafts),
        "target_temperature": values.temperatures((sequences,)),
        "draft_temperature": values.temperatures((sequences,)),
        "step_keys": values.integers((sequences,)),
        "positions": values.integers((sequences,)),
        **of_affinity(values, "verify_step", made),
        **values.dynamic((sequences, places), made.target_size, dtype),
        **given,
    }


def overlap(values: Values) -> dict[str, Any]:
    made, leading = values.affinity(), values.random.choice(LEADING)
    dtype, of_target = values.random.choice(LOGITS), values.random.choice(LOGITS)
    return {
        "target_logits": values.logits((*leading, made.target_size), of_target),
        "draft_logits": values.logits((*leading, made.draft_size), dtype),
        "target_temperature": values.temperatures(leading),
        "draft_temperature": values.temperatures(leading),
        **of_affinity(values, "overlap", made),
        **values.dynamic(leading, made.target_size, dtype),
    }


def overlap_backward(values: Values) -> dict[str, Any]:
    """Of bits and stats that need not belong together."""
    made, leading = values.affinity(), values.random.choice(LEADING)
    rows, dtype = math.prod(leading), values.random.choice(LOGITS)
    below = torch.empty(*leading, -(-made.target_size // 32), dtype=torch.int32)
    return {
        "grad": torch.randn(leading, generator=values.generator),
        "below": below.random_(-(2**31), 2**31, generator=values.generator),
        "stats": stats(values, rows, made.rank, 3).reshape(*leading, 3 + made.rank),
        "draft_logits": values.logits((*leading, made.draft_size), dtype),
        "draft_temperature": values.temperatures(leading),
        **of_affinity(values, "overlap_backward", made),
        **values.dynamic(leading, made.target_size, dtype),
    }


def verify(values: Values) -> dict[str, Any]:
    made, random = values.affinity(), values.random
    lengths = [random.choice([0, 1, 2, 3, 4, 9]) for _ in range(random.randint(0, 4))]
    sequences, drafts = len(lengths), sum(lengths) + random.choice([0, 0, 0, 1, 3])
    rows = None
    available = drafts
    if values.chance(0.4):
        available = random.choice([0, 1, drafts, drafts + 3])
        rows = values.tokens(drafts, max(available, 1), torch.int32, worst=0.2)
    dtype = random.choice(LOGITS)
    tokens = values.tokens(drafts, made.target_size, random.choice([torch.int64, torch.int32]), 0.1)
    target_rows = drafts + sequences + random.choice([0, 0, 2])
    target = values.logits((target_rows, made.target_size), random.choice(LOGITS))
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    if values.chance(0.5):
        accept(target, tokens, lengths)
    if values.chance(0.15):
        worst = [-1, drafts, drafts + 1, drafts - 1, *WORST_32]
        offsets[random.randrange(sequences + 1)] = random.choice(worst)
    arguments = {
        "target_logits": target,
        "draft_logits": values.logits((available, made.draft_size), dtype),
        "draft_stats": None,
        "draft_rows": rows,
        "draft_token_ids": tokens,
        "draft_offsets": offsets,
        "target_temperature": values.temperatures((sequences,)),
        "draft_temperature": values.temperatures((sequences,)),
        "step_keys": values.integers((sequences,)),
        "positions": values.integers((sequences,)),
        **of_affinity(values, "verify", made),
        "max_draft": max_draft(random, sequences),
        **values.dynamic((available,), made.target_size, dtype),
    }
    if values.chance(0.4):
        arguments["draft_stats"] = draft_stats(values, available, made.rank)
    return arguments | truncation(values, sequences, target_rows, made.target_size)


def sum_shard(values: Values) -> dict[str, Any]:
    whole = verify(values)
    # Two changes would make the call of no sequence one of a sequence, with 48 GiB of sums.
    longest = whole["max_draft"] if whole["max_draft"] != MOST else 4
    shard = {"max_draft": longest, **shard_of(values, whole)}
    names = ("target_logits", "draft_token_ids", "draft_offsets", "target_temperature")
    return {**{name: (whole | shard)[name] for name in names}, **shard}


def shard_of(values: Values, whole: dict[str, Any]) -> dict[str, Any]:
    """Some columns from a chunk on, and padding where there are no more."""
    target = whole["target_logits"]
    size = target.shape[1]
    first = values.random.choice([0, 0, 0, 1, size // 1024, 2**18])
    width = values.random.choice([1, 3, size, size + 2, 1024, 1025])
    columns = target[:, first * 1024 : first * 1024 + width]
    padding = target.new_full((target.shape[0], width - columns.shape[1]), math.nan)
    shard = torch.cat([columns, padding], 1)
    if values.chance(0.05):  # that are refused
        refused = (-1, size), (2**18 + 1, size), (first, 0), (first, 2**28 + 1)
        first, size = values.random.choice(refused)
    return {"target_logits": shard, "first_chunk": first, "target_size": size}


def verify_shard(values: Values) -> dict[str, Any]:
    """Of sums that all ranks have made, or of any; and likewise what they have drawn."""
    whole = verify(values)
    made, size = shard_of(values, whole), whole["target_logits"].shape[1]
    sequences, chunks = whole["target_temperature"].numel(), -(-size // 1024)
    longest = min(max(whole["max_draft"], 0), MOST)
    if sequences == 0:
        sums = torch.zeros(0, longest + 1, chunks + 1, 2)
    else:  # a number out of range is refused, whatever the sums are
        names = ("target_logits", "draft_token_ids", "draft_offsets", "target_temperature")
        given = (whole[name] for name in names)
        sums = reference.sum_shard(*given, longest if longest < 1000 else 0, 0, size)
    worst = torch.tensor([math.inf, -math.inf, 3e38, -1.0, 5000.0])

    def spoilt(pairs: Tensor) -> Tensor:
        """Some of them, both numbers, with what no rank makes."""
        some = torch.rand(pairs.shape[:-1], generator=values.generator) < 0.2
        which = torch.randint(5, pairs.shape, generator=values.generator)
        return torch.where(some[..., None], worst[which], pairs)

    drawn = values.integers((sequences,))
    drawn[torch.rand(sequences, generator=values.generator) < 0.7] = 2**63 - 1
    residuals = spoilt(torch.rand(sequences, chunks, 2, generator=values.generator))
    known = values.random.choice([0, 0, 1, 2])
    stats = whole["draft_stats"]
    if stats is None:
        stats = draft_stats(values, *whole["draft_logits"].shape[:1], whole["spread"].shape[1])
    changed = {
        "target_logits": made["target_logits"],
        "sums": spoilt(sums) if values.chance(0.3) else sums,
        "draft_stats": stats,
        "first_chunk": made["first_chunk"],
        "drawn": drawn if known else None,
        "residuals": residuals if known == 2 else None,
    }
    return {name: (whole | changed)[name] for name in OPERATORS["verify_shard"].arguments}


def verify_tree(values: Values) -> dict[str, Any]:
    random = values.random
    size = LARGE if values.chance(0.01) else random.choice(TARGET_SIZES)
    lengths = [random.choice([0, 1, 2, 5, 12]) for _ in range(random.randint(0, 4))]
    sequences, nodes = len(lengths), sum(lengths) + random.choice([0, 0, 0, 1, 3])
    target_rows = nodes + sequences + random.choice([0, 0, 2])
    parents = [random.randint(-1, node - 1) for length in lengths for node in range(length)]
    parents += [random.choice(WORST_32) for _ in range(nodes - len(parents))]
    for _ in range(random.randint(0, 3) if nodes and values.chance(0.3) else 0):
        parents[random.randrange(nodes)] = random.choice([*WORST_32, random.randrange(nodes)])
    offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    if values.chance(0.15):
        worst = [-1, nodes, nodes + 1, nodes - 1, *WORST_32]
        offsets[random.randrange(sequences + 1)] = random.choice(worst)
    token_type = random.choice([torch.int64, torch.int32])
    made = values.affinity() if values.chance(0.6) else None
    size = size if made is None else made.target_size
    given = truncation(values, sequences, target_rows, size)
    del given["logprobs"]
    tokens = values.tokens(nodes, size, token_type, 0.1)
    target = values.logits((target_rows, size), random.choice(LOGITS))
    if values.chance(0.5):
        accept(target, tokens, lengths, parents)
    return {
        "target_logits": target,
        "tree_token_ids": tokens,
        "parents": torch.tensor(parents, dtype=torch.int32),
        "tree_offsets": offsets,
        "temperature": values.temperatures((sequences,)),
        "step_keys": values.integers((sequences,)),
        "positions": values.integers((sequences,)),
        "max_depth": max_draft(random, sequences),
        **drafter(values, made, nodes, sequences),
        **given,
    }


def drafter(values: Values, made: Affinity | None, nodes: int, sequences: int) -> dict[str, Any]:
    """What some nodes of trees were drawn from, or nothing."""
    names = [n for n, rule in OPERATORS["verify_tree"].tensors.items() if rule.needed_with]
    nothing = dict.fromkeys([*names, "draft_stats", "bias"])
    if made is None:
        return nothing
    available, dtype = values.random.choice([0, 1, nodes, nodes + 3]), values.random.choice(LOGITS)
    rows = values.tokens(nodes, max(available, 1), torch.int32, worst=0.2)
    rows[torch.rand(nodes, generator=values.generator) < 0.4] = -1
    return {
        "draft_logits": values.logits((available, made.draft_size), dtype),
        "draft_stats": draft_stats(values, available, made.rank) if values.chance(0.3) else None,
        "draft_rows": rows,
        "draft_temperature": values.temperatures((sequences,)),
        **of_affinity(values, "verify_tree", made),
        **values.dynamic((available,), made.target_size, dtype),
    }


def limits(values: Values, leading: tuple[int, ...], size: int) -> dict[str, Tensor | None]:
    """Top-k, top-p and min-p; in half of the calls none."""
    if values.chance(0.5):
        return dict.fromkeys(("top_k", "top_p", "min_p"))

    def numbers(usual: list[float], worst: list[float], dtype: torch.dtype) -> Tensor | None:
        choices = [*usual, *worst] if values.chance(0.1) else usual
        drawn = values.random.choices(choices, k=math.prod(leading))
        return torch.tensor(drawn, dtype=dtype).reshape(leading) if values.chance(0.6) else None

    return {
        "top_k": numbers([0, 1, 2, size, size + 1, 2**31 - 1], [-1, -(2**31)], torch.int32),
        "top_p": numbers([1.0, 0.5, 0.9, 1e-6, 1e-45], [0.0, -1.0, 2.0, math.nan], torch.float32),
        "min_p": numbers([0.0, 0.1, 1.0, 1e-45], [-1.0, 2.0, math.nan], torch.float32),
    }


def truncation(values: Values, sequences: int, rows: int, size: int) -> dict[str, Any]:
    """Limits, masks, log-probabilities and a method."""
    given = limits(values, (sequences,), size)
    method = values.random.choice([-1, 2, 2**40] if values.chance(0.05) else [0, 1])
    if values.chance(0.5):
        return given | {"allowed": None, "logprobs": 0, "method": method}
    words = torch.empty(rows, -(-size // 32), dtype=torch.int32)
    words.random_(-(2**31), 2**31, generator=values.generator)
    if values.chance(0.3):
        words.fill_(values.random.choice([0, -1, 1]))
    return given | {
        "allowed": words if values.chance(0.6) else None,
        "logprobs": values.random.choice([0, 1, 2, 3] if values.chance(0.1) else [0, 1, 2]),
        "method": method,
    }


def accept(
    target: Tensor, tokens: Tensor, lengths: list[int], parents: list[int] | None = None
) -> None:
    """Makes the target nearly certain of each drafted token, of siblings of all."""
    draft = 0
    for b, length in enumerate(lengths):
        for j in range(length):
            token, row = int(tokens[draft]), draft + b
            if parents is not None:
                row += parents[draft] + 1 - j if -1 <= parents[draft] < j else 0
            if 0 <= token < target.shape[1]:
                target[row, token] = 60.0
            draft += 1


def max_draft(random: Random, sequences: int) -> int:
    if sequences == 0 and random.random() < 0.1:
        return MOST  # nothing is allocated
    return random.choice(MAX_DRAFTS if random.random() < 0.2 else [0, 1, 2, 4, 4, 4])


def draft_stats(values: Values, rows: int, rank: int) -> Tensor:
    """Like those that `draft` returns, and sometimes like nothing that it would."""
    return stats(values, rows, rank, 2 + values.chance(0.3))


def stats(values: Values, rows: int, rank: int, others: int) -> Tensor:
    """A maximum, a sum of at least 1 and more, or nothing that there could be."""
    made = torch.rand(rows, others + rank, generator=values.generator)
    made[:, 1] += 1.0
    if rows and values.chance(0.3):
        worst = [math.nan, math.inf, -math.inf, 0.0, -1.0, 3e38, -3e38, 1e-45]
        made[values.random.randrange(rows), values.random.randrange(made.shape[1])] = (
            values.random.choice(worst)
        )
    return made


def gather_logits(values: Values) -> dict[str, Any]:
    leading, dtype = values.random.choice(LEADING), values.random.choice(LOGITS)
    vocabulary = values.random.choice([0, 1, 2, 9, 40])
    hidden_size = values.random.choice([1, 2, 15, 16, 17, 33])
    shape = (*leading, values.random.choice([0, 1, 2, 5]))
    token_type = values.random.choice([torch.int32, torch.int64])
    tokens = values.tokens(math.prod(shape), max(vocabulary, 1), token_type, worst=0.3)
    return {
        "hidden": values.logits((*leading, hidden_size), dtype),
        "weight": values.logits((vocabulary, hidden_size), dtype),
        "tokens": tokens.reshape(shape),
        "bias": values.logits((vocabulary,), dtype) if values.chance(0.5) else None,
    }


def by_contract(values: Values, operator: str) -> dict[str, Any]:
    """For an operator of no affinity, whose values may be any of their dtype."""
    sizes = defaultdict(lambda: values.random.choice(TARGET_SIZES))
    sizes["..."] = values.random.choice(LEADING)
    dtype = values.random.choice(LOGITS)
    arguments: dict[str, Any] = {}
    for name, rule in OPERATORS[operator].arguments.items():
        if isinstance(rule, Number):
            outside = [rule.least - 1, rule.most + 1] if values.chance(0.05) else []
            arguments[name] = values.random.choice(
                [rule.least, rule.least + 1, rule.most, *outside]
            )
            continue
        shape = shape_of(rule, sizes)
        if rule.dtypes == LOGITS:
            arguments[name] = values.logits(shape, dtype)
        else:
            make = values.integers if rule.dtypes == LONG else values.temperatures
            arguments[name] = make(shape)
    return arguments


MAKERS = {
    "redistribute": redistribute,
    "draft": draft,
    "draft_step": draft_step,
    "verify": verify,
    "verify_step": verify_step,
    "verify_tree": verify_tree,
    "sum_shard": sum_shard,
    "verify_shard": verify_shard,
    "gather_logits": gather_logits,
    "overlap": overlap,
    "overlap_backward": overlap_backward,
}
