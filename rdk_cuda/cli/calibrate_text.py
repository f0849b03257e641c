"""`calibrate` for a drafter with another tokenizer: an affinity between the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rich.console import Console

from rdk_cuda.calibration import Method, Recording, Setting, tune
from rdk_cuda.calibration.tokenizers import COUNTS, counted_affinity, in_words

from ..evaluation.rows import Row
from ..evaluation.table import show_notes, show_rows
from ..pair.documents import Text
from ..pair.errors import InputError
from ..pair.text_pair import TextPair
from .progress import Stages
from .request import Request

PRUNING = ("keep", "keep_by", "kept", "virtual", "dynamic", "screen_bytes", "batch", "draft_cost")
"""What is asked of a drafter that is pruned."""


@dataclass(frozen=True)
class Chosen:
    """What was found for one temperature.

    Attributes:
        methods: all that were measured; `method` was accepted most on the recording.
        common: shares that tokens of both have: of either vocabulary, of the target's mean
            probability, and of the target's tokens in the text those where the drafter begins one.
    """

    setting: Setting
    methods: Sequence[Method]
    method: Method
    common: dict[str, float]


def refuse_pruning(request: Request) -> None:
    """Options that belong to a drafter with the target's tokenizer."""
    defaults = {each.name: each.default for each in fields(Request)}
    given = [name for name in PRUNING if getattr(request, name) != defaults[name]]
    if given:
        raise InputError(
            f"--{given[0].replace('_', '-')}: prunes a drafter with the target's tokenizer, and "
            f"{request.drafter} has another one; leave it out"
        )


def choose(
    models: TextPair, request: Request, recording: Recording, text: Text, stages: Stages
) -> list[Chosen]:
    """Count where the tokenizers meet in the text; for each temperature, the best on samples."""
    found = []
    vocabulary, head = models.vocabulary, models.drafter_head
    for documents in stages.each([text.ids], "Calibrating: counting tokens"):
        shared = models.shared_text(documents)
    methods = models.methods(counted_affinity(models.by_prefix, shared.counts), COUNTS)
    spelled = [
        sum(each is not None for each in tokens.spellings)
        for tokens in (models.text.tokens, models.text.target_tokens)
    ]
    for temperature in dict.fromkeys(request.temperature):
        best = tune(
            ((one, one.drafter) for one in methods), recording.samples, head, temperature
        ).label
        common = {
            "drafter_vocabulary": vocabulary.kept.numel() / spelled[0],
            "target_vocabulary": vocabulary.kept.numel() / spelled[1],
            "target_mass": vocabulary.coverage(recording.mean_probs_at(temperature)),
            "text": shared.shared / max(shared.places, 1),
        }
        found.append(Chosen(Setting(1.0, temperature), methods, best, common))
    return found


def show_chosen(chosen: Sequence[Chosen], rows: Sequence[Sequence[Row]], request: Request) -> None:
    """A table for each temperature, what the tokenizers have in common, and what was chosen."""
    console = Console()
    for one, measured in zip(chosen, rows, strict=True):
        show_rows(console, measured)
        for sentence in (in_words(one.common), f"Chosen on the text: {one.method.name}."):
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print()
    show_notes(console, [row for measured in rows for row in measured])
    console.print(f"{request.output} written.", soft_wrap=True, highlight=False, markup=False)
