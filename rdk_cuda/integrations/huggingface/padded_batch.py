"""A ragged batch as Hugging Face's logits processors, stopping criteria and streamers know it.

They take the whole batch, `[B, L]` token ids of one length L, padded on the left, and may go by a
row's number. The sequences of a speculative decoder are of different lengths at any time. Of a
longer sequence they see its first L tokens; one that has ended is filled up with the pad token, as
by the library itself.

Criteria may remember what they were asked. So they are asked as by the library: once about each
length, as soon as every row has it or has ended before. Tokens beyond a row's end are dropped.

Processors cannot wait: a row goes on by their scores. They are asked once for each length that
somebody has, and only the rows of that length count. One that has not come so far yet has no L
tokens that could be its own: in its place they see once more one that counts, and a
`prefix_allowed_tokens_fn`, which goes by the row's number, is not asked about it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PrefixConstrainedLogitsProcessor, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StopStringCriteria,
)

from ...decoding import SpeculativeDecoder
from ...decoding.generation import Batch, Continuation, Generation, Kind, Statistics
from ...decoding.loop import Hooks


class PaddedBatch:
    """Hold what became of the rows of `input_ids`; its methods are the hooks of `generate`.

    Args:
        input_ids: `[B, W]`, padded on the left.
        prompt_lengths: of each row, without the padding.
        limit: the most new tokens of a row.
        eos: tokens that end a row.
        pad: what follows in a row that has ended. None: rows go on until all have ended, as the
            library has it where it knows no end token.
        criteria: of stopping, besides `limit` and `eos`.
        greedy: whether the highest score alone can be accepted.
        processors: of the target's logits.
        streamer: gets the rows' tokens `[B]`, place by place, as soon as all rows have one.
        record: keep the target's logits and processed scores of every token.

    Attributes:
        continuations: the decoder's own state of the rows, which is told of their ends.
    """

    continuations: Sequence[Continuation] = ()

    def __init__(
        self,
        input_ids: Tensor,
        prompt_lengths: Sequence[int],
        *,
        limit: int,
        eos: frozenset[int],
        pad: int | None,
        greedy: bool,
        criteria: Callable[[Tensor, Any], Tensor] | None = None,
        processors: Sequence[Any] | None = None,
        streamer: Any = None,
        record: bool = False,
    ) -> None:
        rows, self.width = input_ids.shape
        self.prompt_lengths, self.limit, self.eos, self.pad = prompt_lengths, limit, eos, pad
        self.criteria, self.greedy = criteria, greedy
        self.processors = LogitsProcessorList(map(self._of_asked_rows, processors or ()))
        self._asked: list[int] = []  # the rows that count in a call of the processors
        self.streamer, self.record = streamer, record
        self._filler = 0 if pad is None else pad
        beyond = input_ids.new_full((rows, limit), self._filler)
        self._ids = torch.cat([input_ids, beyond], dim=1)
        self._counts = [0] * rows  # new tokens of each row
        self._ends: list[int | None] = [None] * rows  # and behind how many of them it has ended
        self._settled = 0  # places that all rows have and the criteria were asked about
        self._kinds: list[list[tuple[int, Kind]]] = [[] for _ in range(rows)]  # places in a pass
        # Of each row, logits and scores after these drafts.
        self._latest: list[dict[tuple[int, ...], tuple[Tensor, Tensor]]] = [{} for _ in range(rows)]
        self._recorded: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(rows)]
        self._streamed = 0
        if streamer is not None:
            streamer.put(input_ids.cpu())

    def process(self, sequences: Sequence[Continuation], logits: Tensor) -> Tensor:
        """The processors' scores, in float32, as `rdk_cuda.decoding.Process`.

        A draft that they forbid will be rejected, so nobody asks what would follow it: they never
        see a prefix that the target could not have written.
        """
        raw = logits.to(self._ids.device, torch.float32, copy=True)
        scores = self._processed(sequences, raw) if self.processors else raw
        if self.record:
            for row, s in enumerate(sequences):
                drafts = tuple(s.drafts)
                for j in range(len(drafts) + 1 if s.room else 0):
                    self._latest[row][drafts[:j]] = raw[row, j], scores[row, j]
        return scores.to(logits.device)

    def stop(self, row: int, tokens: Sequence[int]) -> bool:
        """Take down a row's newest token; whether the row ends there, as `generation.Stop`."""
        count = len(tokens) - self.prompt_lengths[row]
        self._ids[row, self.width + count - 1] = tokens[-1]
        self._counts[row] = count
        if self._ends[row] is None and (tokens[-1] in self.eos or count >= self.limit):
            self._ends[row] = count
        self._settle()
        return self._is_over(row)

    def on_tokens(self, row: int, tokens: list[int], kinds: list[Kind]) -> None:
        """Keep what is to be returned of a row's new tokens, and stream what all rows have."""
        self._kinds[row] += enumerate(kinds)
        if self.record:
            latest = [self._latest[row][tuple(tokens[:j])] for j in range(len(tokens))]
            self._recorded[row] += [(raw.clone(), scores.clone()) for raw, scores in latest]
            self._latest[row] = {}
        while self.streamer is not None and self._streamed < self._settled:
            self.streamer.put(self._ids[:, self.width + self._streamed].cpu())
            self._streamed += 1

    def count_out(self, statistics: Statistics) -> None:
        """Take what was decided beyond the ends of rows out of the statistics."""
        for own, end in zip(self._kinds, self._kept, strict=True):
            for place, kind in own[end:]:
                statistics.drop(place, kind)

    @property
    def length(self) -> int:
        """How many new tokens the longest row has, or those that have ended."""
        return max((end for end in self._ends if end is not None), default=0)

    @property
    def sequences(self) -> Tensor:
        """`[B, W + length]`, the prompts and what follows them."""
        return self._ids[:, : self.width + self.length].clone()

    def recorded(self, name: str) -> tuple[Tensor, ...]:
        """The target's "logits" or the processors' "scores", `[B, V_t]` for each new token.

        0 in rows that have ended.
        """
        which = ("logits", "scores").index(name)
        ended = torch.zeros_like(self._recorded[0][0][which])
        rows = list(zip(self._recorded, self._kept, strict=True))
        return tuple(
            torch.stack([row[at][which] if at < end else ended for row, end in rows])
            for at in range(self.length)
        )

    @property
    def _kept(self) -> list[int]:
        """How many of its new tokens each row keeps, the pad token not among them."""
        return [self.length if self.pad is None or end is None else end for end in self._ends]

    def _settle(self) -> None:
        """Ask the criteria about every place that all rows have by now."""
        while self._is_complete(self._settled):
            self._settled = count = self._settled + 1
            if self.criteria is None:
                continue
            stops = self.criteria(self._ids[:, : self.width + count].clone(), None).tolist()
            for row, (stopped, end) in enumerate(zip(stops, self._ends, strict=True)):
                if stopped and (end is None or count < end):
                    self._ends[row] = count
                    if self.pad is not None:
                        self._ids[row, self.width + count :] = self.pad
            for row, s in enumerate(self.continuations):
                s.ended = s.ended or self._is_over(row)

    def _is_over(self, row: int) -> bool:
        if self.pad is not None:
            return self._ends[row] is not None
        return None not in self._ends and self._counts[row] >= self.length

    def _is_complete(self, place: int) -> bool:
        """Whether all rows have their token at this place, and not all have ended before it."""
        if None not in self._ends and place >= self.length:
            return False
        return all(
            place < count or (self.pad is not None and end is not None)
            for count, end in zip(self._counts, self._ends, strict=True)
        )

    def _processed(self, sequences: Sequence[Continuation], raw: Tensor) -> Tensor:
        """Ask about every draft and about what follows the last one, by length of the prefix."""
        places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, s in enumerate(sequences):
            self._put_drafts(row, s.drafts)
            for j in range(len(s.drafts) + 1 if s.room else 0):
                places[self.width + self._counts[row] + j].append((row, j))
        scores, forbidden = torch.zeros_like(raw), set[int]()
        for length, at in sorted(places.items()):
            rows = [row for row, _ in at if row not in forbidden]
            drafted = [j for row, j in at if row not in forbidden]
            if not rows:
                continue
            batch = torch.zeros_like(raw[:, 0])
            batch[rows] = raw[rows, drafted]
            self._asked = rows
            answer = self.processors(self._prefixes(length, rows), batch)
            scores[rows, drafted] = answer[rows].to(scores)
            forbidden |= self._forbidden(answer, rows, length)
        for row, s in enumerate(sequences):
            self._put_drafts(row, [self._filler] * len(s.drafts))
        return scores

    def _prefixes(self, length: int, asked: list[int]) -> Tensor:
        """`[B, L]`, what the rows that are asked about follow."""
        ids = self._ids[:, :length].clone()
        short = {row for row, count in enumerate(self._counts) if self.width + count < length}
        if self.pad is not None:
            short -= {row for row, end in enumerate(self._ends) if end is not None}
        ids[[*short.difference(asked)]] = self._ids[asked[0], :length]
        return ids

    def _of_asked_rows(self, processor: Any) -> Any:
        """The processor, whose function by rows is called for those alone that are asked about."""
        if type(processor) is not PrefixConstrainedLogitsProcessor:
            return processor
        function, beams = processor._prefix_allowed_tokens_fn, processor._num_beams

        def allowed(number: int, prefix: Tensor) -> list[int]:
            own = [self._ids[row, : len(prefix)] for row in self._asked if row // beams == number]
            asked = any(torch.equal(each, prefix) for each in own)
            return function(number, prefix) if asked else [0]

        processor = copy(processor)
        processor._prefix_allowed_tokens_fn = allowed
        return processor

    def _put_drafts(self, row: int, drafts: Sequence[int]) -> None:
        start = self.width + self._counts[row]
        self._ids[row, start : start + len(drafts)] = self._ids.new_tensor(drafts)

    def _forbidden(self, scores: Tensor, rows: list[int], length: int) -> set[int]:
        """Rows whose next token, if they have drafted one, cannot be, or is the last."""
        if length == self._ids.shape[1]:
            return set()
        tokens = self._ids[rows, length]
        known = tokens < scores.shape[1]  # a copy from the prompt may be none that can be predicted
        possible = known & ~scores[rows, tokens.where(known, 0)].isneginf()
        if self.greedy:
            possible &= tokens == scores[rows].argmax(1).to(tokens.device)
        drafts = zip(rows, tokens.tolist(), possible.tolist(), strict=True)
        return {row for row, token, is_so in drafts if not is_so or token in self.eos}


class PaddedDecoder(SpeculativeDecoder):
    """A decoder whose sequences a `PaddedBatch` may end, also where they have gone on since."""

    padded: PaddedBatch

    def _decode(self, batch: Batch, hooks: Hooks, statistics: Statistics) -> Generation:
        self.padded.continuations = batch.sequences
        return super()._decode(batch, hooks, statistics)


def stop_strings_of(strings: str | Sequence[str], tokenizer: Any) -> list[StoppingCriteria]:
    """The criterion that finds them, if there are any.

    Raises:
        ValueError: empty texts, or no tokenizer.
    """
    each = [strings] if isinstance(strings, str) else list(strings)
    if not each:
        return []
    if tokenizer is None or not all(isinstance(one, str) and one for one in each):
        raise ValueError(
            f"Generate: stop_strings is {strings!r} and tokenizer {type(tokenizer).__name__}; "
            "needs texts that are not empty, and the target's tokenizer to find them with"
        )
    return [StopStringCriteria(tokenizer, each)]


def ending_of(criteria: Sequence[Any], config: Any, width: int) -> dict[str, Any]:
    """When rows end and what follows in them, as arguments of `PaddedBatch`.

    For the library's own end tokens and longest length no criterion has to be called.
    """
    rest, eos, lengths = StoppingCriteriaList(), set[int](), list[int]()
    for each in criteria:
        if type(each) is EosTokenCriteria:
            eos |= set(each.eos_token_id.tolist())
        elif type(each) is MaxLengthCriteria:
            lengths.append(each.max_length)
        else:
            rest.append(each)
    pad = None
    if any(hasattr(each, "eos_token_id") for each in criteria):
        if config._pad_token_tensor is None:
            raise ValueError(
                "Generate: a stopping criterion has end tokens, but there is no pad_token_id to "
                "follow them; give one"
            )
        pad = int(config._pad_token_tensor)
    limit = max(min(lengths, default=config.max_length) - width, 1)
    return {"limit": limit, "eos": frozenset(eos), "pad": pad, "criteria": rest or None}
