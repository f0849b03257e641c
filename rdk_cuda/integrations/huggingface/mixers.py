"""The modules of a model that write recurrent and convolution states, and how a pass runs them.

In Transformers such a state cannot be cut back. So a pass notes how it came about, from the states
before: what a kernel was given (`gated_mixers.py`), and the columns that a convolution reads. Where
states come about otherwise, the *mixers* alone, the modules that write states, run again over what
a sequence keeps.

They are found in a pass of two tokens, as the modules that write states while they run. Each has
two hooks from then on, which do nothing but in a pass over a `PassCache`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import DynamicCache

from .gated_mixers import Call, taken_rows
from .library import cache_argument, not_served
from .model_check import difference
from .state_layer import StateLayer, States, add_rows, rows_of, set_states, states_of, window_of

# How many tokens a mixer is tried with behind a state, and by how much that is made larger.
_LAST, _LARGER = 3, 64
_lock = threading.Lock()

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Paths(NamedTuple):
    """The way from the first column of a pass to each leaf of its trees; each is a mixer's row.

    Attributes:
        rows: `[P]`, of which sequence each is.
        columns: `[P, D]`, its columns, the last one repeated.
        found: `[2, B, W]`, the path and the place there where each column's output is.
    """

    rows: Tensor
    columns: Tensor
    found: Tensor


class PassCache(DynamicCache):  # type: ignore[misc]
    """The cache that a model is given, with what a pass notes of its mixers."""

    reading: Pass | None = None


class _MixerCache(DynamicCache):  # type: ignore[misc]
    """A mixer's cache in its place. `finish` makes the mixer's own output of what it gave."""

    finish: Callable[[Any], Any] | None = None

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        self.layers = layers


class Pass:
    """One pass of a model: the states before it, and how those after it came about.

    Args:
        counts: how many columns of each sequence are tokens; the first ones.
        width: how many columns there are.
        before: of each recurrent layer.
        mixers: the modules, with the number of their layer.
        stepwise: mixers take one token at a time, where there is a state before.
        gated: kernels are noted, and padding changes no states (`gated_mixers.py`).
        final: none of its tokens will be taken back.
        paths: if they are trees.

    Attributes:
        notes: of each layer, as `StateLayer.notes`.
        kept: `[B, W]`, which columns are tokens; None if all are, or for trees.
    """

    def __init__(
        self,
        counts: list[int],
        width: int,
        before: dict[int, States],
        mixers: Mapping[Any, int],
        *,
        stepwise: bool = False,
        gated: bool = False,
        final: bool = False,
        paths: Paths | None = None,
    ) -> None:
        self.counts, self.width, self.before, self.mixers = counts, width, before, mixers
        self.stepwise, self.gated, self.final, self.paths = stepwise, gated, final, paths
        self.is_whole = paths is None and all(count == width for count in counts)
        self.notes: dict[int, dict[tuple[str, int], Any]] = {layer: {} for layer in before}
        self.call: Call | None = None
        own = torch.tensor(counts, dtype=torch.int64, device="cpu")
        kept = torch.arange(width, device="cpu") < own[:, None]
        self.kept = kept if gated and paths is None and not self.is_whole else None
        self._given: dict[int, list[tuple[Any, Arguments]]] = {}

    def note(self, notes: dict[tuple[str, int], Any], key: tuple[str, int], note: Any) -> None:
        """Note how a state came about; of a final pass, whether that is known."""
        notes[key] = True if self.final and note is not None else note

    @property
    def has_ends(self) -> bool:
        """Whether its states are those behind each sequence's last token, not behind padding."""
        known = self.gated and self.paths is None and all(map(self._is_known, self.before))
        return self.is_whole or known

    def _is_known(self, layer: int) -> bool:
        notes = self.notes[layer]
        is_noted = all(note is not None for note in notes.values())
        return bool(notes) and is_noted and self.before[layer].keys() <= notes.keys()

    def enter(self, mixer: Any, given: Arguments) -> Arguments | None:
        """Note what a mixer is given, and return what it is to be given instead, if anything."""
        layer = self.mixers[mixer]
        if not (self.final and self.is_whole):
            self._given.setdefault(layer, []).append((mixer, given))
        before, paths, count, width = self.before[layer], self.paths, len(self.counts), self.width
        cache = _MixerCache(_cache_in(given, PassCache).layers)
        if paths is not None:
            count, width = paths.columns.shape
            given = self._taken(given, paths.rows, paths.columns)
            cache = _cache_of(cache.layers[layer], layer, rows_of(before, paths.rows))
            if self.gated:
                cache.layers[layer].reading, cache.layers[layer].notes = self, self.notes[layer]
        steps = width if self.stepwise and before else 1
        if paths is None and steps == 1:
            return None

        def finish(first: Any) -> Any:
            cache.finish = None
            parts = [first]
            for step in range(1, steps):
                args, kwargs = _with_cache(_column(given, count, width, step), cache)
                parts.append(mixer(*args, **kwargs))
            output = _joined(parts)
            return output if paths is None else _gathered(output, paths.found)

        cache.finish = finish
        return _with_cache(given if steps == 1 else _column(given, count, width, 0), cache)

    def replay(
        self, rows: Tensor, columns: Tensor, counts: Tensor, into: Mapping[int, States]
    ) -> dict[int, States]:
        """The states after the first `counts [n]` of `columns [n, D]` of sequences `rows [n]`.

        Without those that are already written `into` the layers' own, of all sequences.
        """
        found: dict[int, States] = {}
        for layer in self.before:
            if not self.final and self._is_known(layer):  # of a final pass nothing is noted
                found[layer] = self._from_notes(layer, rows, columns, counts, into[layer])
                continue
            if layer not in self._given:
                raise RuntimeError(
                    "HuggingFaceModel: a module that writes recurrent states was replaced, or has "
                    "lost its hooks; wrap the model again after changing it"
                )
            before, states = rows_of(self.before[layer], rows), found.setdefault(layer, {})
            for count in counts.unique().tolist():
                own = (counts == count).nonzero()[:, 0]
                part = self._read(layer, rows_of(before, own), rows[own], columns[own, :count])
                add_rows(states, part, own, len(rows))
        return found

    def _from_notes(
        self, layer: int, rows: Tensor, columns: Tensor, counts: Tensor, into: States
    ) -> States:
        """The same for one layer, of all sequences at once."""
        own, width, before = rows, self.width, self.before[layer]
        if self.paths is not None:  # what is kept begins the path through its last column
            last = columns.gather(1, counts[:, None] - 1)[:, 0]
            rows, width = self.paths.found[0, rows, last], self.paths.columns.shape[1]
        states: States = {}
        for key, note in self.notes[layer].items():
            if isinstance(note, Call):
                new = note.again(before.get(key), own, rows, counts, into.get(key))
            else:
                new = window_of(taken_rows(note, rows), counts, note.shape[-1] - width)
            if new is not None:
                states[key] = new
        return states

    def error_behind_states(self) -> float:
        """How far states are off where mixers read the last tokens at once, and not one by one.

        For one mixer of each kind, in a pass of one sequence from its beginning. Recurrent states
        before the last tokens are made larger, since they are soon forgotten by some models.
        """
        row = torch.zeros(1, dtype=torch.int64, device="cpu")
        columns = torch.arange(self.width, device="cpu")[None]
        kinds = {type(calls[0][0]): layer for layer, calls in self._given.items()}
        errors = [0.0]
        for layer in kinds.values():
            states = self._read(layer, {}, row, columns[:, :-_LAST])
            for name, number in states:
                states[name, number] *= _LARGER if name == "recurrent_states" else 1
            several, single = (
                self._read(layer, rows_of(states, row), row, columns[:, -_LAST:], steps=steps)
                for steps in (1, _LAST)
            )
            errors += [difference(several[key], single[key]) for key in states]
        return max(errors)

    def _read(
        self, layer: int, states: States, rows: Tensor, columns: Tensor, steps: int | None = None
    ) -> States:
        """Run a layer's mixers over its states, which they write over, in so many steps."""
        width = columns.shape[1]
        if steps is None:
            steps = width if self.stepwise and states else 1
        _, given = self._given[layer][0]
        cache = _cache_of(_cache_in(given, PassCache).layers[layer], layer, states)
        for mixer, given in self._given[layer]:
            given = self._taken(given, rows, columns)
            for step in range(steps):
                one = given if steps == 1 else _column(given, len(rows), width, step)
                args, kwargs = _with_cache(one, cache)
                mixer(*args, **kwargs)
        return states_of(cache.layers[layer])

    def _taken(self, given: Arguments, rows: Tensor, columns: Tensor) -> Arguments:
        size = len(self.counts), self.width

        def take(value: Tensor) -> Tensor:
            own, at = rows[:, None].to(value.device), columns.to(value.device)
            return value.expand(size[0], *value.shape[1:])[own, at]

        taken: Arguments = _mapped(given, take, *size)
        return taken


def find_mixers(model: Any, recurrent: Sequence[int]) -> dict[Any, int]:
    """The mixers of a model's recurrent layers, with the number of their layer; with our hooks.

    Raises:
        TypeError: they cannot be found, or one writes the states of several layers.
    """
    cache = _Watched(config=model.config)
    ids = torch.ones(1, 2, dtype=torch.int64, device=model.get_input_embeddings().weight.device)
    try:
        with torch.no_grad():
            model(input_ids=ids, use_cache=True, **{cache_argument(model): cache})
    except Exception as error:  # whatever a model raises that has a cache of its own
        raise not_served(model, f"does not run over the library's cache: {error}") from error
    written = {layer for layers in cache.mixers.values() for layer in layers}
    if written != set(recurrent):
        raise not_served(
            model,
            f"keeps the states of its layers {sorted(set(recurrent) ^ written)} where they cannot "
            "be rolled back; needs modules that write them through the library's cache",
        )
    shared = [type(module).__name__ for module, own in cache.mixers.items() if len(own) > 1]
    if shared:
        raise not_served(
            model, f"writes the states of several layers in one {shared[0]}; needs one for each"
        )
    with _lock:  # others may find the same ones at this moment
        for module in cache.mixers:
            if _enter not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_enter, with_kwargs=True)
                module.register_forward_hook(_leave, with_kwargs=True)
    return {module: own.pop() for module, own in cache.mixers.items()}


class _Watched(DynamicCache):  # type: ignore[misc]
    """A cache that notes which module is running, innermost, when a state is written."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.mixers: dict[Any, set[int]] = {}

    def update_conv_state(self, states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self._note(layer_idx)
        return super().update_conv_state(states, layer_idx, *args, **kwargs)

    def update_recurrent_state(
        self, states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        self._note(layer_idx)
        return super().update_recurrent_state(states, layer_idx, *args, **kwargs)

    def _note(self, layer: int) -> None:
        # By the stack, since hooks would be seen by other threads that run the same modules.
        frame: Any = inspect.currentframe()
        while not isinstance(module := frame.f_locals.get("self"), torch.nn.Module):
            frame = frame.f_back
        self.mixers.setdefault(module, set()).add(layer)


def _enter(module: Any, args: Any, kwargs: Any) -> Arguments | None:
    cache = _cache_in((args, kwargs), PassCache)
    if cache is None or cache.reading is None:
        return None
    entered: Arguments | None = cache.reading.enter(module, (args, kwargs))
    return entered


def _leave(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
    cache = _cache_in((args, kwargs), _MixerCache)
    return None if cache is None or cache.finish is None else cache.finish(output)


def _cache_in(given: Arguments, kind: type) -> Any:
    args, kwargs = given
    return next((each for each in (*args, *kwargs.values()) if isinstance(each, kind)), None)


def _with_cache(given: Arguments, cache: Any) -> Arguments:
    args, kwargs = given
    other = {key: cache if isinstance(own, DynamicCache) else own for key, own in kwargs.items()}
    return tuple(cache if isinstance(own, DynamicCache) else own for own in args), other


def _cache_of(layer: Any, number: int, states: States) -> _MixerCache:
    """A cache that has nothing but these states of one layer."""
    own = StateLayer(layer.number_of_states)
    set_states(own, states)
    return _MixerCache([own] * (number + 1))


def _mapped(given: Any, take: Callable[[Tensor], Tensor], batch: int, width: int) -> Any:
    """Arguments with `take` of all that has a row for each sequence, or one, and each column."""

    def taken(own: Any) -> Any:
        has = isinstance(own, Tensor) and own.dim() > 1 and own.shape[1] == width
        return take(own) if has and own.shape[0] in (1, batch) else own

    return tree_map(taken, given, is_leaf=lambda own: isinstance(own, DynamicCache))


def _column(given: Arguments, batch: int, width: int, column: int) -> Arguments:
    one: Arguments = _mapped(given, lambda value: value[:, column : column + 1], batch, width)
    return one


def _joined(parts: list[Any]) -> Any:
    """The outputs of one column each, side by side."""
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(_joined(list(each)) for each in zip(*parts, strict=True))
    return torch.cat(parts, dim=1) if isinstance(first, Tensor) and len(parts) > 1 else first


def _gathered(output: Any, found: Tensor) -> Any:
    """Of the paths' outputs, those of the columns of the pass."""
    if isinstance(output, tuple):
        return tuple(_gathered(each, found) for each in output)
    return output[found[0], found[1]] if isinstance(output, Tensor) else output
