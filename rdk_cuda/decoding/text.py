"""A drafter that reads the target's text in its own tokens (DESIGN, "Different tokenizers")."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..affinity import Affinity
from ..affinity.fixed_point import differences, to_float64
from ..dynamic_tokens import TokenHead
from ..functional import gather_logits
from ..vocabulary import Vocabulary
from ..vocabulary.text_tokens import TextTokens
from ..vocabulary.token_bytes import matching_ids
from .models import CausalModel, Output, StateDrafter

_Piece = bytes | tuple[int]  # of a text: bytes, or a special token of the drafter
_LOOK_BEHIND = 256  # bytes in which a seam is looked for
_SETTLED = 64  # bytes behind which a token hardly changes where there is no seam


class TextDrafter:
    """A drafter with a tokenizer of its own as a `CausalModel` that is fed the target's tokens.

    It predicts its own V_d tokens, after the newest token alone. Where its text is longer than the
    drafter's context, or empty, its logits are NaN, and nothing is drafted. Bytes that occur in
    none of its tokens are left out of its text.

    Args:
        drafter: reads and predicts its own tokens.
        drafter_tokenizer, tokenizer: the drafter's and the target's, fast ones.
        own: where the drafter's columns lead among its own tokens: the affinity of a pruned
            drafter, without priors. None: column i is token i.

    Attributes:
        tokens, target_tokens: how both spell bytes.
        spellings: of the drafter's tokens; None of one with a byte that the target has no token of.
        partners: of each of the target's tokens the drafter's of the same bytes, name or role; -1.
        specials: the target's special token, in a list, of each of the drafter's that it has.

    Raises:
        TypeError: a tokenizer that is not fast, or a drafter that reads the target's states.
        ValueError: a tokenizer that changes text, one of the drafter's with a byte of the target's
            in longer tokens alone, or an affinity of another drafter.
    """

    context = math.inf

    def __init__(
        self,
        drafter: CausalModel,
        drafter_tokenizer: Any,
        tokenizer: Any,
        *,
        own: Affinity | None = None,
    ) -> None:
        if isinstance(drafter, StateDrafter):
            raise TypeError(
                f"TextDrafter: {type(drafter).__name__} reads the target's hidden states, one for "
                "each of the target's tokens; needs a drafter that reads its own tokens alone"
            )
        self.drafter, self.vocabulary_size = drafter, drafter.vocabulary_size
        self.device = drafter.device
        self.tokens = TextTokens("TextDrafter: drafter_tokenizer", drafter_tokenizer)
        self.target_tokens = TextTokens("TextDrafter: tokenizer", tokenizer)
        size = drafter.vocabulary_size
        self.tokens.known = self.tokens.known.within(size if own is None else own.target_size)
        if missing := (self.tokens.bytes - self.tokens.single_bytes) & self.target_tokens.bytes:
            raise ValueError(
                f"TextDrafter: drafter_tokenizer has no token for byte {min(missing):#04x} alone, "
                "which the target's text may have; needs a byte-level tokenizer, or one with all "
                "byte fallbacks"
            )
        known = self.target_tokens.single_bytes
        self.spellings = [
            None if isinstance(each, bytes) and not known.issuperset(each) else each
            for each in self.tokens.known.spellings
        ]
        count = len(self.spellings)
        own = own or Affinity.intersection(Vocabulary.identity(size))
        if own.draft_size != size or own.rank or own.target_size < count:
            raise ValueError(
                f"TextDrafter: the drafter predicts {size} tokens, and own is {own}; needs rows "
                f"for these that lead to the {count} of drafter_tokenizer, and no priors"
            )
        self.own = own.to(drafter.device)
        self.partners = matching_ids(self.target_tokens.known, self.tokens.known)
        names = self.target_tokens.spellings
        special = [id for id, name in enumerate(names) if isinstance(name, str)]
        self.specials = {self.partners[id]: [id] for id in reversed(special)}
        self._affinities: dict[int, Affinity] = {}
        self._texts: list[_Text] = []

    @property
    def lengths(self) -> list[int]:
        """How many of the target's tokens each sequence was fed."""
        return [len(text.pieces) for text in self._texts]

    def between(self, target_size: int) -> Affinity:
        """`Affinity.between` of both tokenizers, from all of its columns, also of a pruned head."""
        if target_size not in self._affinities:
            sizes = {"draft_size": self.own.target_size, "target_size": target_size}
            pair = self.tokens.known, self.target_tokens.known
            between = Affinity.between(*pair, **sizes)  # type: ignore[arg-type]
            self._affinities[target_size] = _composed(self.own, between.to(self.device))
        return self._affinities[target_size]

    def partners_head(self, target_size: int) -> TokenHead | None:
        """The drafter's own full head, if it has one, as one for dynamic tokens of the target."""
        head = getattr(self.drafter, "full_head", None)
        return _PartnersHead(head, self.partners, target_size) if isinstance(head, tuple) else None

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""
        self.drafter.reset(batch_size)
        self._texts = [_Text(self.tokens) for _ in range(batch_size)]

    def rollback(self, lengths: Sequence[int]) -> None:
        """Cut sequences back; the drafter forgets when it knows what comes instead."""
        for text, length in zip(self._texts, lengths, strict=True):
            text.cut(length)

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """Append the target's tokens, and predict after those with `keep` 1, not 0."""
        if max(keep) > 1:
            raise ValueError(
                f"TextDrafter.feed: keep is {list(keep)}; needs 0 or 1, because what comes before "
                "the newest token may have other tokens by now"
            )
        blind = []
        for b, (text, new) in enumerate(zip(self._texts, tokens, strict=True)):
            text.extend(self._piece(text, token) for token in new)
            if keep[b] and not text.spell(self.drafter.context):
                blind.append(b)
        asked = list(zip(self._texts, keep, strict=True))
        self.drafter.rollback([text.shared if k else len(text.fed) for text, k in asked])
        own = [text.read() if k else [] for text, k in asked]
        output = self.drafter.feed(own, keep)
        if not blind:
            return output
        rows = torch.tensor(blind, dtype=torch.int64, device=output.logits.device)
        return output._replace(logits=output.logits.index_fill(0, rows, math.nan))

    def feed_own(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """Append tokens of the drafter's own; the next `feed` keeps what still fits."""
        for text, new in zip(self._texts, tokens, strict=True):
            text.fed += new
        return self.drafter.feed(tokens, keep)

    def room(self, sequence: int) -> float:
        """Return how many tokens of its own a sequence can still be fed."""
        return self.drafter.context - len(self._texts[sequence].fed)

    def _piece(self, text: _Text, token: int) -> _Piece:
        known = token < len(self.partners)  # the target may predict more than its tokenizer has
        spelling = self.target_tokens.spellings[token] if known else None
        if not isinstance(spelling, bytes):
            special = self.partners[token] if known else -1
            begins = text.first is None and special in self.tokens.start
            return b"" if special < 0 or begins else (special,)
        spelling = self.tokens.readable(spelling)
        if text.first is None and spelling:
            text.first = len(text.pieces)
            return self.tokens.with_prefix(self.target_tokens.without_prefix(spelling))
        return spelling


class _Text:
    """One sequence: what it is made of, and the drafter's tokens of it.

    Attributes:
        pieces: of each of the target's tokens.
        first: which of them the text begins with, after special tokens.
        fed: what the drafter has in its cache.
        shared: how many of these are still right, once it is spelled.
    """

    def __init__(self, tokens: TextTokens) -> None:
        self.pieces: list[_Piece] = []
        self.first: int | None = None
        self.fed: list[int] = []
        self.shared = 0
        self._tokens, self._own = tokens, list(tokens.start)
        # How long the text is in front of each piece and behind the last, and behind each token.
        self._ends, self._own_ends = [0], [0] * len(tokens.start)
        self._known = 0  # of how many pieces the tokens are
        self._exact = True  # or of these and more

    def extend(self, pieces: Iterable[_Piece]) -> None:
        for piece in pieces:
            self.pieces.append(piece)
            self._ends.append(self._ends[-1] + len(piece))

    def cut(self, length: int) -> None:
        del self.pieces[length:], self._ends[length + 1 :]
        if self.first is not None and self.first >= length:
            self.first = None
        if length < self._known:
            self._known, self._exact = length, False

    def spell(self, context: float) -> bool:
        """Find the drafter's tokens of all pieces; whether there are any, and not too many."""
        at = self._seam()
        kept = bisect_right(self._own_ends, self._ends[at])
        del self._own[kept:], self._own_ends[kept:]
        end = self._ends[at]
        for kind, pieces in groupby(self.pieces[at:], type):
            run: Any = list(pieces)
            text = kind is bytes
            for id in self._tokens.encode(b"".join(run)) if text else sum(run, ()):
                end += len(self._tokens.spellings[id] or b"") if text else 1
                self._own.append(id)
                self._own_ends.append(end)
        self._known, self._exact = len(self.pieces), True
        self.shared = min(self.shared, kept)
        most = min(len(self._own), len(self.fed))
        while self.shared < most and self._own[self.shared] == self.fed[self.shared]:
            self.shared += 1
        self._sees = 0 < len(self._own) <= context
        # At least one token is read, or there would be no logits.
        at = min(self.shared, len(self._own) - 1) if self._sees else self.shared - 1
        self.shared = max(at, 0)
        return self._sees

    def read(self) -> list[int]:
        end = None if self._sees else self.shared + 1
        new = self._own[self.shared : end] or [0]  # of an empty text, any token
        self.fed[self.shared :] = new
        self.shared += len(new) if self._own else 0
        return new

    def _seam(self) -> int:
        """The last piece that the tokens in front of are right, and stay so."""
        limit, cut = self._ends[self._known], 0
        for at in range(self._known - (not self._exact), 0, -1):
            end = self._ends[at]
            if limit - end > _LOOK_BEHIND and cut:
                return cut
            own = bisect_right(self._own_ends, end)
            if own == 0 or self._own_ends[own - 1] != end:
                continue
            before, after = self.pieces[at - 1], (*self.pieces[at : at + 1], ())[0]
            if isinstance(before, tuple) or isinstance(after, tuple):
                return at
            seam = b" " < before[-1:] < b"\x7f" and after[:1] == b" "
            if seam and limit - end >= self._tokens.reach:
                return at
            if not cut and limit - end >= _SETTLED and after and after[0] & 0xC0 != 0x80:
                cut = at
        return cut if limit > _LOOK_BEHIND else 0


class _PartnersHead:
    """The logits of target tokens that the drafter has, too, by its own head; else `-inf`."""

    def __init__(self, head: tuple[Tensor, Tensor | None], partners: list[int], size: int) -> None:
        self.weight, self.bias = head
        padded = partners + [-1] * (size - len(partners))
        self.partners = torch.tensor(padded, dtype=torch.int32, device=self.weight.device)
        self.size = size

    def __call__(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        there = (tokens >= 0) & (tokens < self.size)
        own = self.partners[tokens.long().where(there, 0)].where(there, -1)
        return gather_logits(hidden, self.weight, own, self.bias)


def _composed(first: Affinity, second: Affinity) -> Affinity:
    identity = torch.arange(second.draft_size, device=first.device)
    if torch.equal(first.row_targets.long(), identity) and not first.is_biased:
        return second
    rows = torch.sparse.mm(_matrix(first), _matrix(second))
    return Affinity.from_rows(rows, bias=first.bias).to(first.device)


def _matrix(affinity: Affinity) -> Tensor:
    """`[V_d, V_t]` float64 on the CPU, of an affinity without priors."""
    offsets = affinity.row_offsets.cpu().long()
    rows = torch.arange(affinity.draft_size, device="cpu").repeat_interleave(offsets.diff())
    masses = to_float64(differences(affinity.row_cdf.cpu(), offsets))
    places = torch.stack([rows, affinity.row_targets.cpu()])
    size = affinity.draft_size, affinity.target_size
    return torch.sparse_coo_tensor(places, masses, size, device="cpu")
