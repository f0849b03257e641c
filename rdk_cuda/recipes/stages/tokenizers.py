"""An affinity between two tokenizers from text, next to the rules for it (DESIGN section 2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...affinity import Affinity
from ...drafter import PrunedDrafter
from ...integrations.huggingface.text_drafter import save_text_drafter
from ...vocabulary.text_tokens import TextTokens
from ..choose import tune
from ..errors import InputError
from ..inputs.pairs import TextPair
from ..request import Request, Setting
from .pruning import Method
from .stage import DrafterStage, Found, State

INTERSECTION, PREFIX, COUNTS = "TLI", "between, by prefix", "between, from counts"
LEVEL = (INTERSECTION, PREFIX, COUNTS)
"""The methods on the level of tokens."""

Counts = Mapping[int, Mapping[int, int]]
"""Of each of the drafter's tokens, how often each of the target's is at the same place."""


@dataclass(frozen=True)
class SharedText:
    """Which tokens both begin at the same places, at how many `shared` of these `places`."""

    counts: Counts
    places: int
    shared: int


def shared_text(
    documents: Iterable[Sequence[int]], drafter: TextTokens, target: TextTokens
) -> SharedText:
    """Count in texts of the target's tokens, which no model has to read."""
    counts: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    places = shared = 0
    for document in documents:
        spelled = [(id, target.spellings[id]) for id in document if id < len(target.spellings)]
        ordinary = [(id, drafter.readable(each)) for id, each in spelled if isinstance(each, bytes)]
        own = drafter.encode(b"".join(text for _, text in ordinary))
        ends = accumulate(len(drafter.spellings[id] or b"") for id in own)
        begun = dict(zip([0, *ends], own, strict=False))
        at = 0
        for id, text in ordinary:
            places += 1
            if text and at in begun:
                shared += 1
                counts[begun[at]][id] += 1
            at += len(text)
    return SharedText(counts, places, shared)


def counted_affinity(by_rule: Affinity, counts: Counts) -> Affinity:
    """Give each drafter token what the target has where it is; the rule's row counts once."""
    offsets, targets = by_rule.row_offsets.tolist(), by_rule.row_targets.tolist()
    rows: list[dict[int, float]] = []
    for draft_id in range(by_rule.draft_size):
        row = dict.fromkeys(targets[offsets[draft_id] : offsets[draft_id + 1]], 1.0)
        if row:
            for token, count in counts.get(draft_id, {}).items():
                row[token] = row.get(token, 0.0) + count
        total = sum(row.values())
        rows.append({token: count / total for token, count in row.items()})
    return Affinity.from_rows(rows, target_size=by_rule.target_size, bias=by_rule.bias)


def token_level_methods(models: TextPair, affinity: Affinity, name: str = COUNTS) -> list[Method]:
    vocabulary, head = models.vocabulary, models.drafter_head
    exact = Affinity.intersection(vocabulary)
    affinities = {INTERSECTION: exact, PREFIX: models.by_prefix, name: affinity}
    return [
        Method(each, 1.0, PrunedDrafter(vocabulary, affinity, *head))
        for each, affinity in affinities.items()
    ]


COMMON = ("drafter_vocabulary", "target_vocabulary", "target_mass", "text")
"""Shares: of either vocabulary in both, of the target's mean probability on these tokens, and of
the places in the text where the target begins a token and the drafter, too."""


def in_words(common: Mapping[str, float]) -> str:
    drafter, target, mass, text = (common[name] for name in COMMON)
    return (
        f"The tokenizers differ. By their bytes, {drafter:.1%} of the drafter's tokens and "
        f"{target:.1%} of the target's are in both vocabularies; these have {mass:.1%} of the "
        f"target's mean probability. Where the target begins a token, the drafter does, too, at "
        f"{text:.1%} of the places."
    )


PRUNING = ("keep", "keep_by", "kept", "virtual", "dynamic", "screen_bytes", "batch", "draft_cost")
"""Options of a drafter that is pruned."""


@dataclass(frozen=True, eq=False)
class Chosen(Found):
    """The best for one temperature; `common` has the shares `COMMON`."""

    common: Mapping[str, float]


class Tokenizers(DrafterStage[Request]):
    """An affinity from a drafter's tokens to those of a target with another tokenizer."""

    name = "affinity"

    def check(self, state: State[Request]) -> None:
        request = state.request
        given = [name for name in PRUNING if getattr(request, name) != getattr(Request, name)]
        if given:
            raise InputError(
                f"--{given[0].replace('_', '-')}: prunes a drafter with the target's tokenizer, "
                f"and {request.drafter} has another one; leave it out"
            )

    def run(self, state: State[Request]) -> list[Chosen]:
        """Count where the tokenizers meet in the text; then choose on samples."""
        models = _text_pair(state)
        for documents in state.each([state.text.ids], "Calibrating: counting tokens"):
            shared = shared_text(documents, models.text.tokens, models.text.target_tokens)
        methods = token_level_methods(models, counted_affinity(models.by_prefix, shared.counts))
        samples, head, vocabulary = state.recording.samples, models.drafter_head, models.vocabulary
        drafter_tokens, target_tokens = (
            sum(each is not None for each in tokens.spellings)
            for tokens in (models.text.tokens, models.text.target_tokens)
        )
        found = []
        for temperature in dict.fromkeys(state.request.temperature):
            tried = ((one, one.drafter) for one in methods)
            best = tune(tried, samples, head, temperature).label
            mass = vocabulary.coverage(state.recording.mean_probs_at(temperature))
            kept = vocabulary.kept.numel()
            shares = (
                *(kept / drafter_tokens, kept / target_tokens, mass),
                shared.shared / max(shared.places, 1),
            )
            common = dict(zip(COMMON, shares, strict=True))
            found.append(Chosen(Setting(1.0, temperature), best, methods, common))
        return found

    def found(self, state: State[Request]) -> list[Chosen]:
        made: list[Chosen] = state.made[self.name]
        return made

    def describe(self, state: State[Request], place: int) -> str:
        one: Chosen = state.made[self.name][place]
        return f"{in_words(one.common)}\nChosen on the text: {one.method.name}."

    def settings(self, state: State[Request], place: int) -> dict[str, Any]:
        one: Chosen = state.made[self.name][place]
        return {"method": one.method.name, "common": one.common}

    def save(self, state: State[Request], place: int, path: Path, settings: dict[str, Any]) -> None:
        models = _text_pair(state)
        affinity = state.made[self.name][place].method.drafter.affinity
        save_text_drafter(
            *(path, models.saved_drafter, models.drafter_tokenizer, models.tokenizer),
            *(affinity, settings),
            overwrite=state.request.overwrite,
        )


def _text_pair(state: State[Request]) -> TextPair:
    assert isinstance(state.models, TextPair)  # which the table of stages was chosen by
    return state.models
