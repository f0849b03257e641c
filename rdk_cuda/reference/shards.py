"""`verify` on a rank's columns, in plain PyTorch (DESIGN section 4, "Verify on shards")."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from .judging import SequenceStep
from .operators import DrafterRows, _scaled, owned
from .random import ACCEPT, BONUS, CHUNK, DIRECT, RESIDUAL, TRIES, Trace, below, draw, uniform

NOT_HERE = 2**63 - 1


def sum_shard(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_offsets: Tensor,
    target_temperature: Tensor,
    max_draft: int,
    first_chunk: int,
    target_size: int,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sum each chunk here, and find z at the draft: ``[B, max_draft + 1, chunks + 1, 2]``."""
    width, begin = target_logits.shape[1], first_chunk * CHUNK
    batch, chunks = target_temperature.numel(), -(-width // CHUNK)
    sums = torch.zeros(batch, max_draft + 1, chunks + 1, 2, dtype=dtype, device="cpu")
    sums[..., 0] = -math.inf
    for b, t in enumerate(target_temperature.tolist()):
        first, drafts = _drafts(draft_token_ids, draft_offsets, b, max_draft)
        for j, x in enumerate([*drafts, -1]):
            logits = target_logits[first + b + j, : max(0, target_size - begin)]
            for c, part in enumerate(logits.split(CHUNK) if logits.numel() else ()):
                sums[b, j, c] = _of_chunk(part, t, dtype)
            if 0 <= x - begin < len(logits) and 0 <= t < math.inf:
                sums[b, j, chunks, 0] = logits[x - begin].to(dtype) / (t or 1)
    return sums


def verify_shard(
    target_logits: Tensor,
    sums: Tensor,
    draft_logits: Tensor,
    draft_stats: Tensor,
    draft_rows: Tensor | None,
    draft_token_ids: Tensor,
    draft_offsets: Tensor,
    target_temperature: Tensor,
    draft_temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    max_draft: int,
    first_chunk: int,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    drawn: Tensor | None = None,
    residuals: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    trace: Trace | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens ``[B, max_draft + 1]`` as far as they are known, accepted drafts, what was found here
    and the residual of the chunks here."""
    batch, width = step_keys.numel(), target_logits.shape[1]
    columns = (col_offsets, col_drafts, col_weights, spread, prior)
    dynamic = (dynamic_tokens, dynamic_logits)
    drafter = DrafterRows(draft_logits, draft_stats, bias, columns, dynamic)
    trace = Trace() if trace is None else trace
    tokens = torch.full((batch, max_draft + 1), -1, dtype=torch.int64, device="cpu")
    num_accepted = torch.zeros(batch, dtype=torch.int32, device="cpu")
    found = torch.full((batch,), NOT_HERE, dtype=torch.int64, device="cpu")
    residual = torch.zeros(batch, -(-width // CHUNK), 2, dtype=dtype, device="cpu")

    def p_at(b: int, first: int, t: float, j: int) -> _Partial | None:
        logits = target_logits[first + b + j]
        return _Partial.of(logits, sums[b, j].to(dtype), t, first_chunk, prior.shape[1])

    def q_at(first: int, t: float, j: int, x: int) -> Tensor | None:
        n = first + j
        return drafter.q(n if draft_rows is None else int(draft_rows[n]), t, x, dtype)

    for b, t in enumerate(target_temperature.tolist()):
        first, drafts = _drafts(draft_token_ids, draft_offsets, b, max_draft)
        step = SequenceStep(
            drafts,
            lambda j: None,
            partial(q_at, first, float(draft_temperature[b])),
            int(step_keys[b]),
            int(positions[b]),
            partial(trace.add, b),
        )
        j, p, q = _stop(step, partial(p_at, b, first, t))
        tokens[b, :j] = torch.tensor(drafts[:j], dtype=torch.int64, device="cpu")
        num_accepted[b] = j
        if p is None:
            found[b] = -1
            continue
        if p.argmax is not None:
            found[b] = tokens[b, j] = p.argmax
            continue
        if drawn is None:
            found[b] = p.find(step, j, q)
            continue
        found[b] = drawn[b]
        if found[b] != NOT_HERE:
            tokens[b, j] = _token(int(found[b]) & 0xFFFFFFFF if found[b] >= 0 else -1, prior)
        elif residuals is not None and q is not None:
            tokens[b, j] = _token(p.draw_from(residuals[b].to(dtype), step, j), prior)
        elif q is not None:
            residual[b] = p.residual(step, j, q, residual.shape[1])
    return tokens, num_accepted, found, residual


class _Partial:
    """p of a row of which some chunks are here.

    Of the others each has its mass in its first column, so that draws give their chunk.
    """

    def __init__(self, p: Tensor, drafted: Tensor, here: range, argmax: int | None) -> None:
        self.p, self.drafted, self.here, self.argmax = p, drafted, here, argmax

    @classmethod
    def of(
        cls, logits: Tensor, sums: Tensor, t: float, first_chunk: int, target_size: int
    ) -> _Partial | None:
        (largest, second), m = sums[:-1].T, sums[:-1, 0].max()
        if not 0 <= t < math.inf or sums[:-1].isnan().any() or m == -math.inf:
            return None
        begin = min(first_chunk * CHUNK, target_size)
        end = min(begin + logits.shape[0], target_size)
        here = range(begin // CHUNK, -(-end // CHUNK)) if begin < end else range(0)
        if t == 0:
            c = int(largest.argmax())
            return cls(largest, m, here, c * CHUNK + int(second[c]))
        masses = second * torch.exp(largest - m)
        p = pad(masses[:, None], (0, CHUNK - 1)).flatten()[:target_size]
        p[begin:end] = torch.exp(logits[: end - begin].to(p.dtype) / t - m)
        return cls(p / masses.sum(), torch.exp(sums[-1, 0] - m) / masses.sum(), here, None)

    def find(self, step: SequenceStep, j: int, q: Tensor | None) -> int:
        """Find the first try that is kept, and its token, or the bonus, where it is here."""
        if q is None:
            bonus = draw(self.p, step.words(j, BONUS), partial(step.record, "bonus"))
            return bonus if bonus // CHUNK in self.here else NOT_HERE
        for attempt in range(TRIES):
            words = step.words(j, RESIDUAL, attempt)
            y = draw(self.p, words, partial(step.record, "residual"))
            if y // CHUNK not in self.here:
                continue
            if below("keep", uniform(words[2]), self.p[y], self.p[y] - q[y], step.record):
                return attempt << 32 | y
        return NOT_HERE

    def residual(self, step: SequenceStep, j: int, q: Tensor, chunks: int) -> Tensor:
        """Sum ``max(p - q, 0)`` in each chunk here, and draw a column in it."""
        words = step.words(j, DIRECT)
        of_p = draw(self.p, words, partial(step.record, "direct"))
        made = torch.zeros(chunks, 2, dtype=self.p.dtype, device="cpu")
        for i, c in enumerate(self.here):
            part = slice(c * CHUNK, (c + 1) * CHUNK)
            excess = (self.p[part] - q[part]).clamp(min=0)
            if excess.any():
                scale, record = self.p[part], partial(step.record, "direct")
                column = draw(excess, (0, words[1], 0, 0), record, scale=scale)
                made[i] = torch.stack([excess.sum(), excess.new_tensor(column)])
            elif of_p // CHUNK == c:
                made[i, 1] = of_p % CHUNK
        return made

    def draw_from(self, pairs: Tensor, step: SequenceStep, j: int) -> int:
        """Draw from the residuals of all chunks, or from p if there are none."""
        words, mass = step.words(j, DIRECT), pairs[:, 0]
        if mass.any():
            weights = pad(mass[:, None], (0, CHUNK - 1)).flatten()
            c = draw(weights, words, partial(step.record, "direct"), scale=_chunk_masses(self.p))
        else:
            c = draw(_chunk_masses(self.p), words, partial(step.record, "direct"))
        column = float(pairs[c // CHUNK, 1])
        return c + (int(column) if 0 <= column < CHUNK else 0)


def _stop(
    step: SequenceStep, p_at: partial[_Partial | None]
) -> tuple[int, _Partial | None, Tensor | None]:
    """Find where the accepted drafts end, p there, and q: None behind the last draft, 0 by rule."""
    for j in range(len(step.drafts) + 1):
        p, x = p_at(j), step.token(j)
        if p is None or x == -1:
            break
        q = step.draft(j, x)
        if q is None:
            return j, p, torch.zeros_like(p.p)
        accepted = (
            x == p.argmax
            if p.argmax is not None
            else below("accept", uniform(step.words(j, ACCEPT)[0]), q[x], p.drafted, step.record)
        )
        if not accepted:
            return j, p, q
    return j, p, None


def _drafts(ids: Tensor, offsets: Tensor, b: int, max_draft: int) -> tuple[int, list[int]]:
    """Find the first draft of a sequence, and those that it may come to: none behind a -1."""
    first, count = owned(offsets[b : b + 2].tolist(), ids.numel())
    drafts = ids[first : first + min(count, max_draft)].tolist()
    return first, drafts[: drafts.index(-1)] if -1 in drafts else drafts


def _of_chunk(logits: Tensor, t: float, dtype: torch.dtype) -> Tensor:
    """Give (max, sum), or at temperature 0 (max, its column); of (-inf, 0) nothing is read."""
    nothing = torch.tensor([-math.inf, 0], dtype=dtype, device="cpu")
    if not 0 <= t < math.inf or bool((logits == -math.inf).all()):
        return nothing
    z = _scaled(logits, t, torch.zeros(logits.shape[0], dtype=dtype, device="cpu"), dtype)
    if z is None:
        return torch.full_like(nothing, math.nan)
    return torch.stack([z.max(), z.argmax().to(dtype) if t == 0 else torch.exp(z - z.max()).sum()])


def _token(x: int, prior: Tensor) -> int:
    """Give -1 where there is no such token, as for numbers that no rank has made."""
    return x if x < prior.shape[1] else -1


def _chunk_masses(p: Tensor) -> Tensor:
    """Put the mass of each chunk into its first column."""
    whole = pad(p, (0, -p.shape[0] % CHUNK)).view(-1, CHUNK).sum(1)
    return pad(whole[:, None], (0, CHUNK - 1)).flatten()
