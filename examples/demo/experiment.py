"""The demo's measurements, in order: calibrate, measure acceptance, decode, check."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda.calibration import Material
from rdk_cuda.calibration.methods import RECOMMENDED, Method
from rdk_cuda.calibration.reading import Window
from rdk_cuda.cli.progress import Stages
from rdk_cuda.evaluation.acceptance import measure_acceptance
from rdk_cuda.pair.documents import encode
from rdk_cuda.pair.errors import InputError
from rdk_cuda.pair.pairs import ModelPair

from .arguments import Settings
from .calibration import SHOWN, build_methods, calibrate
from .checks import (
    Check,
    check_greedy,
    check_lossless,
    greedy_outputs,
)
from .corpus import held_out_files, training_files
from .decoding import Decoded, decode_in_turn, decoder_of
from .duration import minutes
from .reading import reader
from .text import (
    Prompt,
    held_out_prompts,
    windows_of,
)

CALIBRATION_FACTOR = 3  # calibration positions for each held-out one
REPEATS = 14  # continuations of a prompt that the user gave


@dataclass(frozen=True)
class Measured:
    """All that the report shows.

    Attributes:
        rates: `[methods, windows, positions]`, acceptance on the held-out windows.
        alone: decoding with the target alone.
        decoded: decoding with each method.
        doubt: a sentence if the times cannot be trusted.
    """

    material: Material
    methods: list[Method]
    windows: list[Window]
    rates: Tensor
    prompts: list[Prompt]
    alone: Decoded
    decoded: list[Decoded]
    doubt: str | None
    checks: list[Check]


def measure(models: ModelPair, settings: Settings, stages: Stages) -> Measured:
    """Run the whole experiment.

    Raises:
        InputError: text that does not fit the models.
    """
    prompts = choose_prompts(models, settings)
    length = min(settings.length, models.context)
    held_out = windows_of(models.tokenizer, held_out_files(), settings.positions, length)
    positions = CALIBRATION_FACTOR * settings.positions
    training = windows_of(models.tokenizer, training_files(), positions, length)

    material = calibrate(models, training, settings, stages.each)
    keeps = stages.each(settings.keep, "Calibrating: clusters and affinities")
    methods = build_methods(material, keeps, settings)
    reading = stages.each(held_out, "Measuring acceptance: held-out text")
    drafters = {settings.temperature: [method.drafter for method in methods]}
    rates = measure_acceptance(reader(models), models.drafter_head, drafters, reading)[
        settings.temperature
    ]
    (alone, *decoded), doubt = decode_in_turn(
        models, [None, *methods], prompts, settings, stages.each
    )
    checks = [
        greedy_check(models, methods, prompts, settings, stages),
        lossless_check(models, methods[-1], held_out, rates[-1], settings, stages),
    ]
    return Measured(material, methods, held_out, rates, prompts, alone, decoded, doubt, checks)


def expected(models: ModelPair, settings: Settings) -> str:
    """How long it will take, in a sentence."""
    windows = (1 + CALIBRATION_FACTOR) * settings.positions // settings.length
    methods = 1 + len(SHOWN) * len(settings.keep)
    guess = minutes(models, settings, choose_prompts(models, settings), windows, methods)
    return f"This will take about {max(1, round(guess))} minutes on this machine as busy as it is."


def choose_prompts(models: ModelPair, settings: Settings) -> list[Prompt]:
    """Held-out modules, or the user's prompt several times, to be sampled with several seeds."""
    if settings.prompt is None:
        prompts = held_out_prompts(models.tokenizer)
        prompts = prompts[:: -(-len(prompts) // settings.prompts)]
    else:
        prompts = [Prompt("Your prompt", encode(models.tokenizer, settings.prompt))] * REPEATS
    length = len(prompts[0].ids)
    if length + settings.tokens > models.context:
        raise InputError(
            f"a prompt of {length} tokens and --tokens {settings.tokens} exceed the models' "
            f"context of {models.context}; shorten one of them"
        )
    return prompts


def greedy_check(
    models: ModelPair,
    methods: Sequence[Method],
    prompts: Sequence[Prompt],
    settings: Settings,
    stages: Stages,
) -> Check:
    """Compare the recommended method at every pruning with the target's own `generate`."""
    once = [prompt for place, prompt in enumerate(prompts) if prompt not in prompts[:place]]
    chosen = [method for method in methods if method.name == RECOMMENDED]
    outputs = {}
    for method in stages.each(chosen, "Checking greedy output"):
        outputs[str(method)] = decoder_of(models, method, settings.draft_length).generate(
            [prompt.ids for prompt in once],
            max_new_tokens=settings.tokens,
            temperature=0.0,
            eos=models.eos,
        )[0]
    return check_greedy(models, once, greedy_outputs(models, once, settings.tokens), outputs)


@torch.no_grad()
def lossless_check(
    models: ModelPair,
    method: Method,
    windows: Sequence[Window],
    rates: Tensor,
    settings: Settings,
    stages: Stages,
) -> Check:
    """Check samples at the position where the acceptance rate is closest to one half."""
    window, place = divmod(int((rates - 0.5).abs().argmin()), rates.shape[1])
    for _ in stages.each([window], "Checking sampled output"):
        ids = torch.tensor([windows[window].ids[: place + 1]], dtype=torch.int64, device="cpu")
        said = reader(models)(ids)
        columns = method.drafter.columns(models.drafter_head, said.hidden[0, -1:], ids.tolist())
        check = check_lossless(
            said.target_logits[0, -1].float(),
            affinity=method.drafter.affinity,
            temperature=settings.temperature,
            seed=settings.seed,
            **{name: rows[0] for name, rows in columns.items()},
        )
    return check
