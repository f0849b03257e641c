"""How long the demo will take, measured on a little of its work before it begins."""

import time
from collections.abc import Callable

import torch

from .arguments import Settings
from .decoding import CHOICE_PROMPTS, CHOICE_TOKENS, ROUNDS, decoders_of
from .shipped import Models
from .text import Prompt

STEPS = 3
READ = 8  # windows at once
LIBRARY = 1.3  # times our own loop, for the same tokens
DRAFTED = 0.8  # likewise with a drafter, as a cautious guess
TRIED = 3  # of several draft lengths
OTHER = 1.4  # counting, clusters, offsets and checks come on top


def minutes(models: Models, settings: Settings, prompts: list[Prompt], windows: int) -> float:
    """A rough guess.

    Args:
        windows: that are read.
    """
    read = models.pair.read(settings.draft_lengths[-1])
    ((_, decoder),) = decoders_of(models, None, ())
    ids = torch.tensor([prompts[0].ids] * READ, dtype=torch.int64, device="cpu")
    total = windows * settings.length * seconds(lambda: read(ids)) / ids.numel()
    for size in settings.batches:
        batch = [prompt.ids for prompt in prompts[:size]]
        decoder.generate(batch, max_new_tokens=1)  # the first pass of a shape is slower
        start, longer = (
            seconds(lambda: decoder.generate(batch, max_new_tokens=count))  # noqa: B023
            for count in (1, 1 + STEPS)
        )
        step = max(0.0, longer - start) / STEPS
        library = 1 + (models.assistant is not None and size == 1)
        # At temperature 0 and above it: the target alone, the library, and three drafters.
        ways = 1 + library * LIBRARY + 3 * DRAFTED
        several = max(settings.prompts, ROUNDS * size) / size
        total += 2 * several * ways * (start + settings.tokens * step)
        chosen = max(CHOICE_PROMPTS, size) / size * min(len(settings.draft_lengths), TRIED)
        total += 2 * chosen * (1 + 3 * DRAFTED) * (start + CHOICE_TOKENS * step)
    return OTHER * total / 60


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
