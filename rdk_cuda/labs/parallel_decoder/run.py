"""One run: drafts up to the first rejection, judged in pieces while drafting goes on."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from ... import functional
from ...decoding.generation import Continuation
from ...decoding.models import Output, feed_unread
from ...decoding.proposal import Proposal, Step
from ...decoding.proposers import DrafterChain
from ...decoding.rules import Logprobs, Rule
from ...functional import Draft
from .speeds import MOST_ROWS, Plan
from .workers import Piece, Workers


class Part(NamedTuple):
    """Tokens that are decided together.

    Attributes:
        tokens: accepted drafts, and at the run's end one more.
        logprobs: of these; empty if they were not asked for.
        end: None while the run goes on; else how its last token was decided.
    """

    tokens: list[int]
    logprobs: list[float]
    end: Literal["resampled", "bonus"] | None


class Run:
    """One decoding step of a sequence, of any length, with one step key (DESIGN section 5).

    The words that judge a draft depend on the key and its position alone. So pieces that are judged
    in any order, or twice, give what one `verify` of all drafts gives, and nothing that depends on
    times decides a token.

    Attributes:
        passes: pieces that were sent.
        draft_times: seconds of each draft, with what was done next to it.
    """

    def __init__(
        self,
        chain: DrafterChain,
        rule: Rule,
        workers: Workers,
        sequence: Continuation,
        step: Step,
        plan: Plan,
        logprobs: Logprobs,
    ) -> None:
        self.chain, self.rule, self.workers = chain, rule, workers
        self.sequence, self.step, self.plan, self.logprobs = sequence, step, plan, logprobs
        self.start, self.passes = sequence.length, 0
        self.draft_times: list[float] = []
        room = [step.room[0] - 1, int(min(chain.drafter.context, 2**62)) - self.start + 1]
        if not all(chain.reads([sequence])):
            room = [0]
        self._most = min(room if plan.draft_length is None else [*room, plan.draft_length])
        self._drafted = self._sent = 0
        self._link: dict[str, Any] = chain.first_link(step)
        self._drafts: dict[int, Draft] = {}  # that are not judged yet
        self._lost: list[Piece] = []
        tokens = step.seeds.new_empty(1, 0)
        self._none = Draft.without_distribution(tokens, seeds=step.seeds, positions=step.positions)

    def parts(self) -> Generator[Part]:
        """Yield parts as soon as they are decided. Close it when the sequence ends."""
        judged: dict[int, tuple[int, Part]] = {}
        row, part = 0, None
        while part is None or part.end is None:
            began = time.perf_counter()
            self._send()
            drafting = self._draft()
            for piece, rows in self.workers.answers(block=not drafting):
                if piece.run is not self:
                    continue  # of a run that was cancelled
                if isinstance(rows, ValueError):
                    raise rows
                if rows is None:
                    self._lost.append(piece)
                else:
                    judged[piece.first] = piece.end, self._judge(piece, rows)
            if drafting:
                self.draft_times.append(time.perf_counter() - began)
            while row in judged and (part is None or part.end is None):
                row, part = judged.pop(row)
                yield part

    def _send(self) -> None:
        while self._lost and self._give(self._lost[-1]):
            self._lost.pop()
        while (rows := self._drafted + 1 - self._sent) > 0:
            enough = self.plan.lookahead if self._sent else min(self.plan.lookahead, 1)
            if not (self._done or 0 < enough <= rows):
                return
            piece = Piece(self, self._sent, self._sent + min(rows, MOST_ROWS))
            if not self._give(piece):
                return
            self._sent = piece.end

    def _give(self, piece: Piece) -> bool:
        given = self.workers.send(piece, self.sequence.context, self.start + piece.end - 1)
        self.passes += given
        return given

    @property
    def _done(self) -> bool:
        """Whether nothing is drafted any more."""
        return self._drafted >= self._most

    def _draft(self) -> bool:
        """Draft one token; False if there is none to draft."""
        if self._done:
            return False
        chain, s = self.chain, self.sequence
        output = feed_unread(chain.drafter, [s], [1])
        dynamic = chain.dynamic_of([s], output)
        logits = output.logits[:, 0].clone()  # a model may write over its own
        drafted = functional.draft(logits, chain.affinity, **self._link, **dynamic)
        token = int(drafted.tokens)
        if token < 0:  # no distribution here: the draft ends
            self._most = self._drafted
            return True
        s.context.append(token)
        self._drafts[self._drafted] = drafted
        self._link = {"after": drafted}
        self._drafted += 1
        return True

    def _judge(self, piece: Piece, rows: Tensor) -> Part:
        # Row j was sent with j drafts, and one more was drafted since, or none is any more.
        last = piece.end > self._drafted
        count = piece.end - piece.first - last
        drafts = [self._drafts.pop(place) for place in range(piece.first, piece.first + count)]
        joined = Draft.join(drafts) if drafts else self._none
        joined = replace(joined, offset=0, positions=self.step.positions + piece.first)
        # Behind drafts that are not the last, the row and the token drawn from it are not used.
        logits = rows[None, : count + 1].to(self.chain.affinity.device)
        decided = self.rule(
            Output(logits),
            Proposal(joined.tokens, joined),
            self.step,
            self.logprobs,
            **self.step.limits,
        )
        (tokens,), (logprobs,) = decided.tokens, decided.logprobs
        if len(tokens) <= count:
            return Part(tokens, logprobs[: len(tokens)], "resampled")
        tokens = tokens if last else tokens[:-1]
        return Part(tokens, logprobs[: len(tokens)], "bonus" if last else None)
