"""The demo's measurements, in order: calibrate, measure acceptance, decode, check."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda.calibration import Material
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import Window, encode
from rdk_cuda.recipes.progress import Stages
from rdk_cuda.recipes.report.evaluation import measure_acceptance
from rdk_cuda.recipes.stages.pruning import PRUNED, Method

from .arguments import Settings
from .calibration import build_methods, calibrate
from .checks import Check, check_greedy, check_lossless, greedy_outputs
from .corpus import held_out_files, training_files
from .decoding import ROUNDS, Case, Decoded, Ours, Transformers, Way, choose, decode_in_turn, spaced
from .live import Continuation, continue_live
from .shipped import Models
from .text import Prompt, held_out_prompts, windows_of

CALIBRATION_FACTOR = 3  # calibration positions for each held-out one
REPEATS = 14  # continuations of a prompt that the user gave


@dataclass(frozen=True)
class Measured:
    """All that the report shows.

    Attributes:
        methods: the full drafter first, the recommended one at the smallest vocabulary last.
        rates: `[methods, windows, positions]`, acceptance on the held-out windows.
        ways: to decode, the target alone first, the recommended method last.
        decoded: for each case what each way gave.
        chosen: for each case the way that was fastest on other text.
        doubt: a sentence if the times cannot be trusted.
    """

    material: Material
    methods: list[Method]
    windows: list[Window]
    rates: Tensor
    ways: list[Way]
    decoded: dict[Case, list[Decoded]]
    chosen: dict[Case, Ours]
    doubt: str | None
    continuation: Continuation
    checks: list[Check]


def measure(models: Models, settings: Settings, stages: Stages) -> Measured:
    """Run the whole experiment.

    Raises:
        InputError: text that does not fit the models.
    """
    pair = models.pair
    prompts = choose_prompts(models, settings)
    length = min(settings.length, pair.context)
    held_out = windows_of(pair.tokenizer, held_out_files(), settings.positions, length)
    positions = CALIBRATION_FACTOR * settings.positions
    training = windows_of(pair.tokenizer, training_files(), positions, length)

    material = calibrate(pair, training, settings, stages.each)
    methods, greedy = build_methods(material, settings, stages.each)
    ways = ways_of(models, methods, greedy, settings)
    cases = [Case(t, batch) for batch in settings.batches for t in (0.0, settings.temperature)]
    others = [one for one in held_out_prompts(pair.tokenizer) if one not in prompts]
    chosen = choose(ways, cases, others, stages.each)
    shown = next((way for case, way in chosen.items() if case.temperature), ways[-1])
    shown = ways[-1] if shown is ways[0] else shown
    continuation = continue_live((ways[0], shown), prompts, pair.tokenizer, settings)
    reading = stages.each(held_out, "Measuring acceptance: held-out text")
    drafters = {settings.temperature: [method.drafter for method in methods]}
    read = pair.read(settings.draft_lengths[-1])
    rates = measure_acceptance(read, pair.drafter_head, drafters, reading)[settings.temperature]
    decoded, doubt = decode_in_turn(ways, cases, prompts, settings, stages.each)
    checks = [
        greedy_check(models, ways, prompts, settings, stages),
        lossless_check(models, methods[-1], held_out, rates[-1], settings, stages),
    ]
    return Measured(
        material, methods, held_out, rates, ways, decoded, chosen, doubt, continuation, checks
    )


def ways_of(
    models: Models, methods: Sequence[Method], greedy: Sequence[Method], settings: Settings
) -> list[Way]:
    """The target alone, the library's own ways, and the drafter full, pruned, and as recommended.

    Args:
        methods: at the temperature; the last ones have the smallest vocabulary.
        greedy: the pruned and the recommended one at temperature 0.
    """
    hot = settings.temperature
    full, *_ = methods
    pruned = next(one for one in reversed(methods) if one.name == PRUNED)
    ours: dict[str, dict[float, Method | None]] = {
        f"full head, {full.drafter.affinity.draft_size:,} rows": {0.0: full, hot: full},
        f"pruned to {pruned.drafter.affinity.draft_size:,} rows": {0.0: greedy[0], hot: pruned},
        "virtual and dynamic tokens": {0.0: greedy[1], hot: methods[-1]},
    }
    library = [Transformers("Transformers: generate", models, assisted=False)]
    if models.assistant is not None:
        library.append(Transformers("Transformers: assisted", models, assisted=True))
    drafting = [Ours(name, models, each, settings.draft_lengths) for name, each in ours.items()]
    return [Ours("target alone", models, {0.0: None, hot: None}), *library, *drafting]


def choose_prompts(models: Models, settings: Settings) -> list[Prompt]:
    """Held-out modules, or the user's prompt several times, to be sampled with several seeds."""
    if settings.prompt is None:
        most = max(settings.prompts, ROUNDS * max(settings.batches))
        prompts = spaced(held_out_prompts(models.pair.tokenizer), most)
    else:
        ids = encode(models.pair.tokenizer, settings.prompt)
        prompts = [Prompt("Your prompt", ids)] * REPEATS
    length, context = len(prompts[0].ids), models.pair.context
    if length + settings.tokens > context:
        raise InputError(
            f"a prompt of {length} tokens and --tokens {settings.tokens} exceed the models' "
            f"context of {context}; shorten one of them"
        )
    return prompts


def greedy_check(
    models: Models,
    ways: Sequence[Way],
    prompts: Sequence[Prompt],
    settings: Settings,
    stages: Stages,
) -> Check:
    """Compare every drafter's greedy text with the target's own `generate`."""
    once = [prompt for place, prompt in enumerate(prompts) if prompt not in prompts[:place]]
    once = spaced(once, settings.prompts)
    outputs = {}
    drafting = [way for way in ways if isinstance(way, Ours)][1:]
    for way in stages.each(drafting, "Checking greedy output"):
        seeds = list(range(len(once)))
        ids, case = [prompt.ids for prompt in once], Case(0.0, settings.batches[0])
        outputs[way.name], _ = way(ids, settings.tokens, case, seeds)
    expected = greedy_outputs(models, once, settings.tokens)
    return check_greedy(models, once, expected, outputs)


@torch.no_grad()
def lossless_check(
    models: Models,
    method: Method,
    windows: Sequence[Window],
    rates: Tensor,
    settings: Settings,
    stages: Stages,
) -> Check:
    """Check samples at the position where the acceptance rate is closest to one half."""
    window, place = divmod(int((rates - 0.5).abs().argmin()), rates.shape[1])
    for _ in stages.each([window], "Checking sampled output"):
        ids = torch.tensor([windows[window].ids], dtype=torch.int64, device="cpu")
        said = models.pair.read(settings.draft_lengths[-1])(ids)
        context = windows[window].contexts[-rates.shape[1] :][place]
        columns = method.drafter.columns(
            models.pair.drafter_head, said.hidden[0, place : place + 1].float(), [context]
        )
        check = check_lossless(
            said.target_logits[0, place].float(),
            affinity=method.drafter.affinity,
            temperature=settings.temperature,
            seed=settings.seed,
            **{name: rows[0] for name, rows in columns.items()},
        )
    return check
