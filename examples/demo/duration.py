"""How long the demo will take, measured on a little of its work before it begins."""

import time
from collections.abc import Callable

import torch

from rdk_cuda.pair.pairs import ModelPair

from .arguments import Settings
from .decoding import ROUNDS, decoder_of
from .reading import reader
from .text import Prompt

STEPS = 3
# What a pass of the target, with its drafts, yields at least: the better drafters give more.
TOKENS_A_PASS = 1.8
OTHER = 1.4  # counting, clusters, offsets and checks come on top


def minutes(
    models: ModelPair, settings: Settings, prompts: list[Prompt], windows: int, methods: int
) -> float:
    """A rough guess.

    Args:
        windows: that are read.
        methods: that decode, besides the target alone.
    """
    read, decoder = reader(models), decoder_of(models, None, settings.draft_length)
    ids = torch.tensor([prompts[0].ids], dtype=torch.int64, device="cpu")
    batch = [prompt.ids for prompt in prompts[::ROUNDS]]
    decoder.generate(batch[:1], max_new_tokens=1)  # the first pass of all is slower
    reading = seconds(lambda: read(ids)) / ids.shape[1]
    start = seconds(lambda: decoder.generate(batch, max_new_tokens=1))
    step = (seconds(lambda: decoder.generate(batch, max_new_tokens=1 + STEPS)) - start) / STEPS
    drafted = settings.tokens / TOKENS_A_PASS * (1 + settings.draft_length / 2)
    decoding = ROUNDS * (methods * (2 * start + drafted * step) + start + settings.tokens * step)
    return OTHER * (windows * settings.length * reading + decoding) / 60


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
