"""What docs/design.md section 4 promises of the outputs of an accepted call."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda._ops.contract import (
    DYNAMIC,
    LIMITS,
    OPERATORS,
    Sizes,
    dtype_of,
    shape_of,
    sizes_of,
)

from .agreement import (
    SUM_TO_ONE,
    Arguments,
    Outputs,
    agrees_with_the_reference,
    comparable,
    draft_rows,
    has_distribution,
    logits_are_comparable,
    require,
    require_form,
)


def redistribute(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    (probs,) = outputs
    rows, temperature, bias = draft_rows(arguments, sizes)
    good = has_distribution(rows, temperature, bias) & usable_limits(arguments, temperature)
    probs = probs.reshape(rows.shape[0], sizes["V_t"])
    require(probs[~good].isnan().all(), "a row without distribution has a probability")
    probs = probs[good]
    require((probs >= 0).all(), "a probability is negative or NaN")
    sums = probs.double().sum(1)
    require(((sums - 1).abs() < SUM_TO_ONE).all(), "probabilities do not sum to 1")
    greedy = probs[temperature[good] == 0]
    require((greedy.max(1).values == 1).all(), "q at temperature 0 is not one-hot")


def draft(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    tokens, stats = outputs
    rows, temperature, bias = draft_rows(arguments, sizes)
    good = has_distribution(rows, temperature, bias) & usable_limits(arguments, temperature)
    tokens, stats = tokens.reshape(-1), stats.reshape(rows.shape[0], stats.shape[-1])
    require((tokens[~good] == -1).all(), "a row without distribution has a token")
    require(stats[~good].isnan().all(), "a row without distribution has stats")
    inside = (tokens[good] >= 0) & (tokens[good] < sizes["V_t"])
    require(inside.all(), "a drafted token is outside of the vocabulary")
    greedy = temperature == 0
    require((stats[good & greedy] == 0).all(), "stats at temperature 0 are not zeros")
    stats = stats[good & ~greedy]
    if sizes["limited"]:
        require((stats[:, -1] <= stats[:, 0]).all(), "a threshold is above the largest value")
        stats = stats[:, :-1]
    require(stats.isfinite().all(), "stats are not finite")
    require((stats[:, 1] > 0.999).all(), "the sum of exponentials is less than the largest")
    spread = stats[:, 2:]
    require(((spread >= 0) & (spread < 1 + SUM_TO_ONE)).all(), "a prior's mass is not in [0, 1]")


def draft_step(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    """As `draft`, and each row is kept in its slot, and nothing else is changed."""
    tokens, kept_tokens, stats, keys, *kept = outputs
    place, slots = arguments["place"], arguments["slots"]
    if arguments["place_id"] is not None:
        place = int(arguments["place_id"])
    ids = range(len(tokens)) if slots is None else slots.tolist()
    if not 0 <= place < kept_tokens.shape[1]:  # then nothing is kept
        ids, place = [], 0
    own = {slot: b for b, slot in enumerate(ids) if 0 <= slot < len(keys)}
    rows, order = list(own.values()), list(own)
    temperature = arguments["temperature"]
    usable = (temperature >= 0) & (temperature < math.inf) & usable_limits(arguments, temperature)
    whole = {slot: b for slot, b in own.items() if usable[b]}
    made = reference.step_keys(arguments["seeds"], arguments["positions"])
    given = [row for name in ("draft_logits", *DYNAMIC) if (row := arguments[name]) is not None]
    expected = [
        (kept_tokens, tokens[:, 0], own),
        *((memory, row, whole) for memory, row in zip(kept, given, strict=True)),
    ]
    require(torch.equal(keys[order], made[rows]), "a key is not that of its step")
    for memory, row, those in expected:
        bits = memory[list(those), place].contiguous().view(torch.uint8)
        needed = row[list(those.values())].contiguous().view(torch.uint8)
        require(torch.equal(bits, needed), "a row is not kept")
    for memory in (kept_tokens, stats, keys[:, None], *kept):
        others = torch.ones(memory.shape[:2], dtype=torch.bool)
        others[order, place if memory.shape[1] > place else 0] = False
        require((memory[others] == 99).all(), "another row is changed")
    some = {n: None if (x := arguments[n]) is None else x[rows] for n in (*LIMITS, *DYNAMIC)}
    of_rows = {n: arguments[n][rows] for n in ("draft_logits", "temperature")} | some
    leading = sizes | {"...": (len(rows),)}
    draft(arguments | of_rows, leading, (tokens[rows, 0], stats[order, place]))


def verify_step(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    """As `verify`, of packed lists."""
    batch, drafts = sizes["B"], sizes["J"]
    packed = arguments | {"max_draft": drafts, "draft_offsets": torch.arange(batch + 1) * drafts}
    packed["draft_token_ids"] = arguments["draft_token_ids"].flatten()
    packed["draft_stats"] = arguments["draft_stats"].flatten(0, 1)
    packed["target_logits"] = arguments["target_logits"].flatten(0, 1)
    if arguments["allowed"] is not None:
        packed["allowed"] = arguments["allowed"].flatten(0, 1)
    verify(packed, sizes, outputs)


def verify(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    tokens, num_accepted, logprobs = outputs
    width = arguments["max_draft"] + 1
    if arguments["logprobs"] > 0:
        require((logprobs[tokens == -1] == -math.inf).all(), "no token has a log-probability")
        some = logprobs[tokens >= 0]
        require((some.isnan() | (some < 1e-5)).all(), "a log-probability is above 0")
    drafted = arguments["draft_token_ids"].tolist()
    stats = arguments["draft_stats"]
    # With a negative mass of a prior q is negative, and anything is accepted.
    believable = stats is None or bool((stats[:, 2 : 2 + sizes["R"]] >= 0).all())
    offsets, temperatures = arguments["draft_offsets"].tolist(), arguments["target_temperature"]
    for b, accepted in enumerate(num_accepted.tolist()):
        start, count = owned(offsets[b], offsets[b + 1], len(drafted))
        require(0 <= accepted <= min(count, width - 1), "more drafts are accepted than there are")
        row = tokens[b].tolist()
        require(row[:accepted] == drafted[start : start + accepted], "an accepted token is changed")
        require(all(t == -1 for t in row[accepted + 1 :]), "a token after the stop is not -1")
        rows = slice(start + b, start + b + accepted + 1)
        target = allowed_logits(arguments, rows)
        good = has_distribution(target, temperatures[b].expand(accepted + 1))
        good &= (temperatures[b] == 0) | has_usable_limits(arguments, b)
        require(good[:accepted].all(), "a draft is accepted where p is no distribution")
        put = row[: accepted + bool(good[accepted])]
        if not good[accepted]:
            require(row[accepted] == -1, "a token is drawn where p is no distribution")
        require(all(0 <= t < sizes["V_t"] for t in put), "a token is outside of the vocabulary")
        if temperatures[b] == 0:
            require(put == target[: len(put)].argmax(1).tolist(), "a greedy token is no argmax")
        if believable:
            possible = target[range(len(put)), put] > -math.inf
            require(possible.all(), "a token is put out that the target forbids")


def sum_shard(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    (sums,) = outputs
    exact = reference.sum_shard(**arguments, dtype=torch.float64)
    none = exact.isnan().any(-1)
    require(sums[none].isnan().any(-1).all(), "a chunk without distribution has a sum")
    nothing = exact[..., 0] == -math.inf
    require(torch.equal(sums[nothing].double(), exact[nothing]), "nothing has a sum")
    if logits_are_comparable("sum_shard", arguments):
        found, exact = sums[~none].double(), exact[~none]
        close = torch.allclose(found, exact, rtol=1e-4, atol=1e-5)
        require(close, "a sum is not that of the reference")


def verify_shard(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    tokens, num_accepted, found, residual = outputs
    require(((tokens >= -1) & (tokens < sizes["V_t"])).all(), "a token is outside")
    drafted, offsets = arguments["draft_token_ids"].tolist(), arguments["draft_offsets"].tolist()
    for b, accepted in enumerate(num_accepted.tolist()):
        start, count = owned(offsets[b], offsets[b + 1], len(drafted))
        most = min(count, arguments["max_draft"])
        require(0 <= accepted <= most, "more drafts are accepted than there are")
        row = tokens[b].tolist()
        require(row[:accepted] == drafted[start : start + accepted], "an accepted token is changed")
        require(all(t == -1 for t in row[accepted + 1 :]), "a token after the stop is not -1")
    if arguments["drawn"] is None or arguments["residuals"] is not None:
        require((residual == 0).all(), "a residual is weighed that is not asked for")
    if arguments["drawn"] is None:
        require((found >= -1).all(), "no such token can be found")


def verify_tree(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    tokens, num_accepted, path = outputs
    depth = arguments["max_depth"]
    proposed, parents = arguments["tree_token_ids"].tolist(), arguments["parents"].tolist()
    offsets, temperatures = arguments["tree_offsets"].tolist(), arguments["temperature"]
    given, stats = arguments["draft_rows"], arguments["draft_stats"]
    rows = [-1] * len(proposed) if given is None else given.tolist()
    believable = stats is None or bool((stats[:, 2 : 2 + sizes["R"]] >= 0).all())
    for b, accepted in enumerate(num_accepted.tolist()):
        start, count = owned(offsets[b], offsets[b + 1], len(proposed))
        require(0 <= accepted <= depth, "more nodes are accepted than asked for")
        row, nodes = tokens[b].tolist(), [-1, *path[b].tolist()]
        require(all(t == -1 for t in row[accepted + 1 :]), "a token after the stop is not -1")
        require(all(n == -1 for n in nodes[accepted + 1 :]), "a node after the stop is not -1")
        for place, node in enumerate(nodes[: accepted + 1]):
            target = allowed_logits(arguments, slice(start + b + 1 + node, start + b + 2 + node))
            good = bool(has_distribution(target, temperatures[b : b + 1]))
            good &= bool(temperatures[b] == 0) or has_usable_limits(arguments, b)
            token = row[place]
            require(good == (token >= 0), "a token is drawn where p is none, or none where it is")
            if not good:
                require(place == accepted, "the walk goes on where p is no distribution")
                continue
            possible = target[0, token] > -math.inf
            require(possible or not believable, "a token is put out that the target forbids")
            if temperatures[b] == 0:
                require(token == int(target.argmax()), "a greedy token is no argmax")
            children = [c for c in range(node + 1, count) if parents[start + c] == node]
            kinds = rows[start : start + count] if temperatures[b] != 0 else [-1] * count
            goes_on_at_the_first_child(
                nodes[place + 1] if place < depth else -1,
                [c for c in children if kinds[c] == -1 and proposed[start + c] == token],
                [c for c in children if kinds[c] != -1 and proposed[start + c] != -1],
                proposed[start : start + count],
                token,
                place < depth,
            )


def goes_on_at_the_first_child(
    following: int, fixed: list[int], drawn: list[int], proposed: list[int], token: int, may: bool
) -> None:
    """Of the fixed ones with the token, or of the drawn ones, which may be passed by."""
    if following in drawn:
        require(following == drawn[0], "the walk goes on at a drawn child that does not count")
        require(proposed[following] == token, "an accepted token is changed")
    else:
        expected = fixed[0] if fixed and may else -1
        require(following == expected, "the walk does not go on at the first child")


def allowed_logits(arguments: Arguments, rows: slice) -> Tensor:
    """Rows of the target's logits, -inf where the mask has no bit."""
    logits: Tensor = arguments["target_logits"][rows]
    if arguments["allowed"] is None:
        return logits
    bits = arguments["allowed"][rows, :, None] >> torch.arange(32, dtype=torch.int32) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[1]] == 0, -math.inf)


def usable_limits(arguments: Arguments, temperature: Tensor) -> Tensor:
    """Bools, true at temperature 0."""
    usable = [has_usable_limits(arguments, row) for row in range(temperature.numel())]
    return torch.tensor(usable, dtype=torch.bool) | (temperature == 0)


def has_usable_limits(arguments: Arguments, b: int) -> bool:
    limits = reference.Limits.of(arguments["top_k"], arguments["top_p"], arguments["min_p"], b)
    return limits.usable


def owned(begin: int, end: int, drafts: int) -> tuple[int, int]:
    """The first draft of a sequence and how many it has (section 4, "Bad input")."""
    sound = 0 <= begin <= end <= drafts
    return min(max(begin, 0), drafts), end - begin if sound else 0


def overlap(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    rows, temperature, bias = draft_rows(arguments, sizes)
    target = arguments["target_logits"].reshape(rows.shape[0], sizes["V_t"])
    of_target = arguments["target_temperature"].reshape(-1)
    good = has_distribution(rows, temperature, bias) & (temperature > 0)
    good &= has_distribution(target, of_target)
    count = rows.shape[0]
    alpha = outputs[0].reshape(count)
    below, stats = (each.reshape(count, each.shape[-1]) for each in outputs[1:])
    require(alpha[~good].isnan().all(), "a row without distribution has an overlap")
    require(stats[~good].isnan().all(), "a row without distribution has stats")
    require((below[~good] == 0).all(), "a row without distribution has bits")
    inside = (alpha[good] >= 0) & (alpha[good] < 1 + SUM_TO_ONE)
    require(inside.all(), "an overlap is not from 0 to 1")
    last = below[:, -1].long() & 0xFFFFFFFF if below.numel() else below
    require((last >> ((sizes["V_t"] - 1) % 32 + 1) == 0).all(), "a bit has no token")
    if logits_are_comparable("overlap", arguments):
        exact = reference.overlap(**arguments, dtype=torch.float64)[0].reshape(alpha.shape)
        close = torch.allclose(alpha.double(), exact, rtol=1e-4, atol=1e-6, equal_nan=True)
        require(close, "an overlap is not that of the reference")


def overlap_backward(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    rows, temperature, bias = draft_rows(arguments, sizes)
    stats = arguments["stats"].reshape(rows.shape[0], sizes["R"] + 3)
    good = has_distribution(rows, temperature, bias) & (temperature > 1e-30)
    good &= (stats.abs() < 1e4).all(1)
    total = stats[:, 1]
    none = ~((temperature > 0) & (temperature < math.inf) & (total > 0))
    exact = reference.overlap_backward(**arguments, dtype=torch.float64)
    # Their sizes: masses are added, and a difference of them is rounded as much as their sum.
    sized = arguments["stats"].clone()
    sized[..., 2] = -sized[..., 2].abs()
    positive = {"grad": arguments["grad"].abs(), "below": torch.full_like(arguments["below"], -1)}
    of_size = reference.overlap_backward(
        **arguments | positive | {"stats": sized}, dtype=torch.float64
    )
    eps = torch.finfo(arguments["draft_logits"].dtype).eps
    for grads, expected, size in zip(outputs, exact, of_size, strict=True):
        width = grads.shape[-1]
        grads, expected, size = (t.reshape(rows.shape[0], width) for t in (grads, expected, size))
        require((grads[none] == 0).all(), "a row without distribution has a gradient")
        compared = good[:, None] & (size.abs() < 1e4)  # false for NaN
        error = (grads.double() - expected).abs()
        limit = 1e-4 * size.abs() + eps * expected.abs() + 1e-7
        require((error <= limit)[compared].all(), "a gradient is not that of the reference")
    tokens = arguments["dynamic_tokens"]
    if tokens is not None:
        unused = (tokens < 0) | (tokens >= sizes["V_t"])
        require((outputs[1][unused] == 0).all(), "an unused dynamic column has a gradient")


def gather_logits(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    (logits,) = outputs
    hidden, weight, tokens = (arguments[name] for name in ("hidden", "weight", "tokens"))
    outside = (tokens < 0) | (tokens >= sizes["V"])
    require((logits[outside] == -math.inf).all(), "a token outside of the head has a logit")
    if sizes["V"] == 0:
        return
    bias = arguments["bias"]
    exact = reference.gather_logits(hidden, weight, tokens, bias, dtype=torch.float64)
    terms = (hidden.abs(), weight.abs(), tokens, None if bias is None else bias.abs())
    magnitude = reference.gather_logits(*terms, dtype=torch.float64)
    limits = torch.finfo(hidden.dtype)
    compared = ~outside & (magnitude < limits.max / 4)  # false for NaN
    rounding = 32 * torch.finfo(torch.float32).eps * magnitude + limits.eps * exact.abs()
    error = (logits.double() - exact).abs()[compared]
    require((error <= (rounding + limits.tiny)[compared]).all(), "a logit is not the dot product")


def name_tokens(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    expected = reference.name_tokens(**arguments)
    require(torch.equal(outputs[0], expected), "a row is not that of the reference")


def step_keys(arguments: Arguments, sizes: Sizes, outputs: Outputs) -> None:
    (seeds,) = outputs
    expected = reference.step_keys(**arguments)
    require(torch.equal(seeds, expected), "a key is not that of the reference")


PROMISES: dict[str, Callable[[Arguments, Sizes, Outputs], None]] = {
    operator: globals()[operator] for operator in OPERATORS
}


def check(
    operator: str, arguments: Arguments, outputs: Outputs, against_reference: bool = False
) -> None:
    """Everything that is promised; `BrokenPromiseError` says what does not hold."""
    sizes = sizes_of(operator, arguments)
    for (name, rule), output in zip(OPERATORS[operator].results.items(), outputs, strict=False):
        require_form(name, output, dtype_of(rule, arguments), shape_of(rule, sizes))
    PROMISES[operator](arguments, sizes, outputs)
    if against_reference and comparable(operator, arguments, sizes):
        agrees_with_the_reference(operator, arguments, outputs)
