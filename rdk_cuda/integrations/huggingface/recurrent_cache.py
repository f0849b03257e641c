"""A cache for models with recurrent layers: slots of keys and values, and states that go back.

A row's tokens begin at its first column and padding is behind them, where it reaches no state of
theirs; padding in front would shift what a convolution sees. The states behind what a sequence
keeps of the passes since the last rollback are made again from what these noted (`mixers.py`). A
state from before those passes is not kept: a sequence that is cut back
further is read anew, from its first token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...decoding.models import Ragged
from .attention import Layers
from .gated_mixers import noted, noting_forward
from .mixers import Pass, PassCache, Paths
from .row_cache import ways
from .slot_cache import Masks, SlotCache
from .state_layer import (
    StateLayer,
    States,
    StateSlotLayer,
    add_rows,
    rows_of,
    set_states,
    states_of,
)

End = tuple[int, int]
"""Where a sequence ends: in the pass of this number, behind so many of its columns."""


class RecurrentCache(SlotCache):
    """As `SlotCache`; the sequences' tokens are kept, too.

    Args:
        mixers: of the model, from `find_mixers`.
        stepwise: mixers read one token at a time behind a state, for those that do not go on from
            it otherwise.
        gated: kernels are noted in a pass and run again alone, where they allow it.
    """

    apart = True

    def __init__(
        self,
        config: Any,
        layers: Layers,
        dtype: torch.dtype,
        device: torch.device,
        mixers: Mapping[Any, int],
    ) -> None:
        self.mixers, self._at = mixers, layers.recurrent
        self.stepwise, self.gated = False, True
        copies = {mixer: noting_forward(mixer) for mixer in mixers}
        self._forwards = {mixer: copy for mixer, copy in copies.items() if copy is not None}
        super().__init__(config, layers, dtype, device)

    def reset(self, batch_size: int) -> None:
        """As `SlotCache.reset`."""
        super().reset(batch_size)
        self.texts: list[list[int]] = [[] for _ in range(batch_size)]
        self._forget_passes()

    def append(
        self, real: Tensor, parents: Ragged | None = None, *, final: bool = False
    ) -> tuple[Tensor, Masks]:
        """As `SlotCache.append`; nothing of a `final` pass is taken back."""
        self._settle()
        counts = real.sum(1).tolist()
        # Copies, since mixers write over what they are given.
        before = {at: {k: s.clone() for k, s in self._states(at).items()} for at in self._at}
        paths = None if parents is None else _paths(real, parents)
        options = {"stepwise": self.stepwise, "gated": self.gated, "final": final}
        one = Pass(counts, real.shape[1], before, self.mixers, paths=paths, **options)
        self._passes.append(one)
        for at in self._at:
            self.past.layers[at].reading = one if self.gated and paths is None else None
            self.past.layers[at].notes = one.notes[at]
        self.past.reading = one
        return super().append(real, parents)

    def append_read(self, real: Tensor) -> Tensor:
        """As `SlotCache.append_read`; nothing of it is taken back."""
        self.past.reading = None
        for at in self._at:
            self.past.layers[at].reading = None
        positions = super().append_read(real)
        self._forget_passes()
        return positions

    def run(self, module: Any, arguments: Mapping[str, Any]) -> Any:
        """As `SlotCache.run`."""
        with noted(self._forwards if self.gated else {}, self.newest):
            return super().run(module, arguments)

    def keep_paths(self, paths: Ragged) -> None:
        """As `SlotCache.keep_paths`."""
        if self._ways is None:
            return
        columns = []
        for b, (count, size) in enumerate(zip(self.newest.counts, self.tree_sizes, strict=True)):
            columns.append([*range(count - size), *(count - size + node for node in paths[b])])
            text = self.texts[b]
            known = len(text) - size
            self.texts[b] = text[:known] + [text[known + node] for node in paths[b]]
        self._go_to([(len(self._passes) - 1, len(own)) for own in columns], columns)
        super().keep_paths(paths)
        self._forget_passes()

    def rollback(self, lengths: Sequence[int]) -> None:
        """As `SlotCache.rollback`, but of a sequence that is cut back too far nothing is left.

        `texts` has what is to be read again.
        """
        self.keep_paths([[] for _ in self.lengths])
        if self._passes and self.newest.final:
            self._settle()
        wanted = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
        ends = [self._end(b, length) for b, length in enumerate(wanted)]
        self.texts = [text[:length] for text, length in zip(self.texts, wanted, strict=True)]
        self._go_to(ends)
        super().rollback([0 if end is None else n for end, n in zip(ends, wanted, strict=True)])
        self._forget_passes()

    @property
    def newest(self) -> Pass:
        """The newest pass since the last rollback."""
        return self._passes[-1]

    def states(self) -> list[Tensor]:
        """As `SlotCache.states`."""
        self._settle()
        return [state for at in self._at for state in self._states(at).values()]

    def _past(self) -> PassCache:
        past, made = PassCache(config=self.config), super()._past().layers
        for number in self._at:
            own = past.layers[number]
            made[number] = (
                StateSlotLayer(own.number_of_states)
                if hasattr(own, "keys")
                else StateLayer(own.number_of_states)
            )
        past.layers = made
        return past

    def _masks(self, real: Tensor, positions: Tensor, seen: Any) -> Masks:
        if not self._with_keys:
            return None
        masks = super()._masks(real, positions, seen)
        unmasked = dict.fromkeys(("conv", "linear_attention"))
        return {**masks, **unmasked} if isinstance(masks, dict) else masks

    def _states(self, at: int) -> States:
        return states_of(self.past.layers[at])

    def _forget_passes(self) -> None:
        """Nothing before this can be taken back."""
        self._passes: list[Pass] = []
        self._settled, self._fixed = 0, list(self.lengths)

    def _settle(self) -> None:
        """Bring states to the end of each sequence's tokens, not of the pass."""
        if self._settled < len(self._passes):
            newest = len(self._passes) - 1
            self._go_to([(newest, count) for count in self._passes[newest].counts])
            self._settled = len(self._passes)
            if self._passes[newest].final:
                self._forget_passes()

    def _end(self, b: int, length: int) -> End | None:
        """Where sequence b had so many tokens; None if there were none, or too long ago."""
        if length == 0 or length < self._fixed[b]:
            return None
        behind = length - self._fixed[b]
        for number, one in enumerate(self._passes):
            if behind <= one.counts[b]:
                return number, behind
            behind -= one.counts[b]
        return len(self._passes), 0

    def _go_to(self, ends: Sequence[End | None], columns: Ragged | None = None) -> None:
        """Let each sequence have the states of its end, in the columns of a tree that it keeps."""
        places = [None if end is None else self._place(b, *end) for b, end in enumerate(ends)]
        groups, there = defaultdict[Any, list[int]](list), (len(self._passes), 0)
        for b, place in enumerate(places):
            if place != there:  # else the layers have it
                groups[place and (place[0], place[1] == 0)].append(b)
        own = {at: self._states(at) for at in self._at}
        for group, rows in groups.items():
            index = torch.tensor(rows, dtype=torch.int64, device="cpu")
            if group is None or group[1]:  # before the first token there may be none
                before = {} if group is None else self._passes[group[0]].before
                after = {at: _known(before.get(at, {}), own[at], index) for at in self._at}
            else:
                after = self._passes[group[0]].replay(index, *_columns(rows, ends, columns), own)
            for at, states in after.items():
                if len(rows) < len(ends):
                    add_rows(own[at], states, index, len(ends))
                set_states(self.past.layers[at], states if len(rows) == len(ends) else own[at])

    def _place(self, b: int, number: int, count: int) -> End:
        """The same end, but (n, 0), before pass n or behind the last, where states are known."""
        last = len(self._passes)
        if number == last or count < self._passes[number].counts[b]:
            return number, count
        one = self._passes[number]
        is_known = number + 1 < last or self._settled == last or count == one.width or one.has_ends
        return (number + 1, 0) if is_known and one.paths is None else (number, count)


def _known(before: States, own: States, rows: Tensor) -> States:
    both = {
        key: before[key] if key in before else state.new_zeros(()).expand_as(state)
        for key, state in own.items()
    }
    return rows_of(both, rows)


def _columns(
    rows: Sequence[int], ends: Sequence[End | None], columns: Ragged | None
) -> tuple[Tensor, Tensor]:
    """List what sequences keep of a pass, `[n, D]`, the first repeated; and how many, `[n]`."""
    chosen = [list(range((ends[b] or (0, 0))[1]) if columns is None else columns[b]) for b in rows]
    counts = torch.tensor(list(map(len, chosen)), dtype=torch.int64, device="cpu")
    filled = [own + own[:1] * (int(counts.max()) - len(own)) for own in chosen]
    return torch.tensor(filled, dtype=torch.int64, device="cpu"), counts


def _paths(real: Tensor, parents: Ragged) -> Paths:
    """The rows of a pass with trees: what is before a tree, and the way to each of its leaves."""
    rows, columns = zip(*ways(real.sum(1).tolist(), parents), strict=True)
    found = torch.zeros(2, *real.shape, dtype=torch.int64, device="cpu")
    for row, (b, way) in enumerate(zip(rows, columns, strict=True)):
        for place, column in enumerate(way):
            found[0, b, column], found[1, b, column] = row, place
    longest = max(map(len, columns))
    filled = [[*way, *[way[-1] if way else 0] * (longest - len(way))] for way in columns]

    of, at = (torch.tensor(own, dtype=torch.int64, device="cpu") for own in (rows, filled))
    return Paths(of, at, found)
