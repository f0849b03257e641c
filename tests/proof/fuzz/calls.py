"""Random calls of every operator: valid ones with all kinds of values, then changes to arguments.

Everything is a function of a seed and an index. Sizes are tiny: bounds are as near as they can be.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda._ops.contract import (
    BOOL,
    DYNAMIC,
    IDS,
    LIMITS,
    LOGITS,
    LONG,
    OPERATORS,
    Argument,
    Number,
    shape_of,
)
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
    call = Call(operator, valid(values, operator))
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

    def some(self, shape: tuple[int, ...], share: float) -> Tensor:
        """Bools, of which so many are true."""
        return torch.rand(shape, generator=self.generator) < share

    def affinity(self) -> Affinity:
        size = LARGE if self.chance(0.01) else self.random.choice(TARGET_SIZES)
        return affinity(self.random.choice(KINDS), size)

    def logits(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        scale = self.random.choice([0.0, 0.5, 2.0, 2.0, 30.0])
        values = torch.randn(shape, generator=self.generator) * scale
        if self.chance(0.1):
            values[torch.rand(shape, generator=self.generator) < 0.5] = -math.inf
        if self.chance(0.2):  # ties by the hundred
            values = values.round()
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


# ------------------------------------------------------------------------- by the contract

# How often an optional argument is given, by name; of limits, where there are any.
GIVEN = dict(allowed=0.3, draft_stats=0.4, draft_rows=0.4, branches=0.5, bias=0.5)
GIVEN |= dict(slots=0.5, place_id=0.3, drawn=0.5, residuals=0.25) | dict.fromkeys(LIMITS, 0.6)
GIVEN |= dict(pruned=0.7, successor_offsets=0.7, decided=0.5, drafts=0.5, lengths=0.5)
USUAL: dict[str, tuple[list[float], list[float]]] = {
    "top_k": ([0, 1, 2, 2**31 - 1], [-1, -(2**31)]),
    "top_p": ([1.0, 0.5, 0.9, 1e-6, 1e-45], [0.0, -1.0, 2.0, math.nan]),
    "min_p": ([0.0, 0.1, 1.0, 1e-45], [-1.0, 2.0, math.nan]),
}
WORST_STATS = [math.nan, math.inf, -math.inf, 0.0, -1.0, 3e38, -3e38, 1e-45]


def valid(values: Values, operator: str) -> dict[str, Any]:
    """A call whose sizes agree; a few numbers are out of range."""
    random, rules = values.random, OPERATORS[operator].arguments
    made, trees = values.affinity(), operator == "verify_tree"
    lengths = [
        random.choice([0, 1, 2, 5, 12] if trees else [0, 1, 2, 3, 4, 9])
        for _ in range(random.randint(0, 4))
    ]
    absent = absent_from(values, operator)
    sizes: dict[str, Any] = {"...": random.choice(LEADING), "B": len(lengths), "W": 0}
    sizes["N"] = count = sum(lengths) + random.choice([0, 0, 0, 1, 3])
    sizes["M"] = count if "draft_rows" in absent else random.choice([0, 1, count, count + 3])
    sizes |= {"V_t": made.target_size, "V_d": made.draft_size, "R": made.rank}
    sizes |= {"C": random.choice([0, 1, 2, 3, 8]), "K": random.choice([1, 2, 4])}
    sizes |= {"V": random.choice([0, 1, 2, 9, 40]), "d": random.choice([1, 2, 15, 16, 17, 33])}
    sizes["J"] = random.randint(0, sizes["K"])
    if operator == "name_tokens":
        sizes |= {"L": random.choice([0, 1, 3, 33, 40, 90, 300]), "n": random.randint(0, 4)}
        sizes["nnz"] = random.choice([0, 1, 7, 90])
    sizes["S"] = random.choice([len(lengths), len(lengths) + 2, max(len(lengths) - 1, 0)])
    sizes["limited"] = int(any(name in rules and name not in absent for name in LIMITS))
    numbers = {n: number(values, n, r, sizes) for n, r in rules.items() if isinstance(r, Number)}
    if operator == "sum_shard" and numbers["max_draft"] == MOST:
        # Two changes would make the call of no sequence one of a sequence, with 48 GiB of sums.
        numbers["max_draft"] = 4
    sizes |= numbers
    dtypes = {name: random.choice(LOGITS) for name in rules}
    tensors = {
        name: None
        if name in absent
        else getattr(made, name)
        if rule.affinity
        else tensor(values, name, rule, sizes, dtypes[rule.dtype_of or name], lengths)
        for name, rule in OPERATORS[operator].tensors.items()
        if name not in ("sums", "target_logits")
    }
    if "bias" in tensors and rules["bias"].affinity and not made.is_biased and values.chance(0.5):
        tensors["bias"] = None
    arguments = {**tensors, **numbers}
    if "target_logits" in rules:
        add_target(values, operator, arguments, sizes, lengths)
    return {name: arguments[name] for name in rules}


def absent_from(values: Values, operator: str) -> set[str]:
    """Arguments that are not given."""
    tensors = OPERATORS[operator].tensors
    absent = {n for n, rule in tensors.items() if rule.optional and not rule.affinity
              and n in GIVEN and not values.chance(GIVEN[n])}  # fmt: skip
    if values.chance(0.5):
        absent |= set(LIMITS)
    if values.chance(0.4):
        absent |= {f"{kept}{name}" for name in DYNAMIC for kept in ("", "step_")}
    if operator == "verify_tree":
        absent.discard("draft_rows")
        if values.chance(0.4):  # of fixed nodes alone
            absent |= {n for n, rule in tensors.items() if rule.needed_with}
            absent |= {"draft_stats", "bias"}
    if "drawn" in absent:
        absent.add("residuals")
    if "successor_offsets" in absent:
        absent.add("successors")
    return absent & set(tensors)


def number(values: Values, name: str, rule: Number, sizes: dict[str, Any]) -> int:
    random = values.random
    if name in ("max_draft", "max_depth"):
        return max_draft(random, sizes["B"])
    if name == "target_size":
        return 2**28 + 1 if values.chance(0.02) else int(sizes["V_t"])
    usual = {
        "method": [0, 1],
        "logprobs": [0, 0, 0, 1, 2],
        "place": [0],
        "recent": [0, 1, 3, 40, rule.most],
        "window": [0, 1, 3, 40, rule.most],
        "width": [0, 1, 2, 7, 7, 20, 50],
        "first_chunk": [0, 0, 0, 1, sizes["V_t"] // 1024, 2**18],
    }.get(name, [rule.least, rule.least + 1, rule.most])
    worst = [rule.least - 1, min(rule.most + 1, 2**40), *([sizes["K"]] if name == "place" else [])]
    return random.choice(worst if values.chance(0.05) else usual)


def tensor(
    values: Values,
    name: str,
    rule: Argument,
    sizes: dict[str, Any],
    dtype: torch.dtype,
    lengths: list[int],
) -> Tensor | None:
    """Of its contract's shape and dtype, with the values that its name stands for."""
    random = values.random
    choices = rule.shape.replace("2 + R or 3 + R", f"{2 + values.chance(0.3)} + R")
    shape = shape_of(rule._replace(shape=choices.removeprefix(">= ")), sizes)
    if choices.startswith(">= "):
        shape = (shape[0] + random.choice([0, 0, 2]), *shape[1:])
    count = math.prod(shape)
    if rule.written:
        return torch.full(shape, 99, dtype=dtype if rule.dtypes == LOGITS else rule.dtypes[0])
    if rule.dtypes == LOGITS:
        return values.logits(shape, dtype)
    if name.endswith("temperature"):
        return values.temperatures(shape)
    if name in LIMITS:
        usual, worst = USUAL[name]
        usual = [*usual, sizes.get("V_d", 0), sizes["V_t"]] if name == "top_k" else usual
        drawn = random.choices([*usual, *worst] if values.chance(0.1) else usual, k=count)
        return torch.tensor(drawn, dtype=rule.dtypes[0]).reshape(shape)
    if name in ("allowed", "below"):
        words = torch.empty(shape, dtype=torch.int32)
        words.random_(-(2**31), 2**31, generator=values.generator)
        return words.fill_(random.choice([0, -1, 1])) if values.chance(0.2) else words
    if name.endswith("stats"):
        return stats(values, shape)
    if rule.dtypes == BOOL:
        return values.some(shape, 0.7)
    if name == "successor_offsets":
        ends = torch.randint(sizes["nnz"] + 1, shape, generator=values.generator).sort().values
        ends = ends.where(values.some(shape, 0.9), values.tokens(count, 99, torch.int64, 0.5))
        return ends.clamp(-(2**31), 2**31 - 1).int()
    if name.endswith("offsets"):
        return offsets(values, lengths, sizes["N"])
    if name == "parents":
        return parents(values, lengths, sizes["N"])
    if name == "draft_rows":
        rows = values.tokens(count, max(sizes["M"], 1), torch.int32, worst=0.2)
        return rows.masked_fill(values.some(shape, 0.4), -1) if rule.needed_with else rows
    if name == "slots":
        ids = values.tokens(count, max(sizes["S"], 1), random.choice(IDS), 0.2)
        # Two rows of one slot would write to one place.
        return ids if len(set(ids.tolist())) == count else None
    if name == "place_id":
        return torch.tensor([random.randint(-1, sizes["K"])])
    if name == "grad":
        return torch.randn(shape, generator=values.generator)
    if name == "residuals":
        return spoilt(values, torch.rand(shape, generator=values.generator))
    if rule.dtypes == LONG and name != "drafts":
        drawn = values.integers(shape)
        return drawn.masked_fill(values.some(shape, 0.7), 2**63 - 1) if name == "drawn" else drawn
    universe = {"branches": 2**24, "tokens": max(sizes["V"], 1), "lengths": sizes.get("L", 0) + 1}
    universe = universe.get(name, sizes["V_t"])
    worst = 0.1 if name.endswith("token_ids") else 0.3
    drawn = values.tokens(count, universe, random.choice(rule.dtypes), worst)
    return drawn.reshape(shape)


def offsets(values: Values, lengths: list[int], count: int) -> Tensor:
    made = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    if values.chance(0.3):
        worst = [-1, count, count + 1, count - 1, *WORST_32]
        made[values.random.randrange(len(made))] = values.random.choice(worst)
    return made


def parents(values: Values, lengths: list[int], count: int) -> Tensor:
    random = values.random
    made = [random.randint(-1, node - 1) for length in lengths for node in range(length)]
    made += [random.choice(WORST_32) for _ in range(count - len(made))]
    for _ in range(random.randint(0, 3) if count and values.chance(0.3) else 0):
        made[random.randrange(count)] = random.choice([*WORST_32, random.randrange(count)])
    return torch.tensor(made, dtype=torch.int32)


def stats(values: Values, shape: tuple[int, ...]) -> Tensor:
    """A maximum, a sum of at least 1 and more, or nothing that `draft` would return."""
    made = torch.rand(shape, generator=values.generator)
    made[..., 1] += 1.0
    if made.numel() and values.chance(0.3):
        flat = made.view(-1)
        flat[values.random.randrange(len(flat))] = values.random.choice(WORST_STATS)
    return made


def add_target(
    values: Values,
    operator: str,
    arguments: dict[str, Any],
    sizes: dict[str, Any],
    lengths: list[int],
) -> None:
    """The target's logits, in half of the calls nearly certain of all drafts; and a rank's part."""
    rule = OPERATORS[operator].tensors["target_logits"]
    shape = rule.shape.replace("W", "V_t")
    target = tensor(values, "target_logits", rule._replace(shape=shape), sizes,
                    values.random.choice(LOGITS), lengths)  # fmt: skip
    arguments["target_logits"] = target
    tokens = next((arguments[n] for n in arguments if n.endswith("token_ids")), None)
    if tokens is not None and values.chance(0.5):
        each = [sizes["J"]] * sizes["B"] if tokens.dim() == 2 else lengths
        tree = arguments["parents"].tolist() if "parents" in arguments else None
        accept(target.view(-1, target.shape[-1]), tokens.flatten(), each, tree)
    if "sums" in OPERATORS[operator].tensors:
        arguments["sums"] = sums(values, arguments, sizes)
    if "W" in rule.shape:
        first, width = arguments["first_chunk"], values.random.choice([1, 3, 40, 1024, 1025])
        columns = target[:, max(first, 0) * 1024 :][:, :width]
        padding = target.new_full((target.shape[0], width - columns.shape[1]), math.nan)
        arguments["target_logits"] = torch.cat([columns, padding], 1)


def sums(values: Values, arguments: dict[str, Any], sizes: dict[str, Any]) -> Tensor:
    """Those that all ranks have made, or with some that none makes."""
    names = ("target_logits", "draft_token_ids", "draft_offsets", "target_temperature")
    longest = min(max(arguments["max_draft"], 0), MOST)
    if sizes["B"] == 0:
        return torch.zeros(0, longest + 1, -(-sizes["V_t"] // 1024) + 1, 2)
    # A number out of range is refused, whatever the sums are.
    given = (arguments[name] for name in names)
    exact = reference.sum_shard(*given, longest if longest < 1000 else 0, 0, sizes["V_t"])
    return spoilt(values, exact)


def spoilt(values: Values, pairs: Tensor) -> Tensor:
    """Now and then some of them, both numbers, with what no rank makes."""
    worst = torch.tensor([math.inf, -math.inf, 3e38, -1.0, 5000.0])
    which = torch.randint(5, pairs.shape, generator=values.generator)
    some = values.some(pairs.shape[:-1], 0.2 * values.chance(0.3))
    return torch.where(some[..., None], worst[which], pairs)


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
