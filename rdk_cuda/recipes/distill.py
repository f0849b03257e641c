"""`distill`: a calibrated drafter is trained, measured, and written if it is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..decoding import SpeculativeDecoder
from ..decoding.models import Read
from ..drafter import FullHead, PrunedDrafter
from ..integrations.huggingface import HuggingFaceModel
from ..integrations.huggingface.saved_drafter import (
    MODEL,
    load_pruned,
    refuse_existing,
    save_drafter,
)
from ..integrations.huggingface.text_drafter import is_text_drafter
from .directories import naming_out
from .errors import InputError
from .inputs.documents import Document, Window, cut_windows, first_token
from .inputs.loading import quiet, refuse_unsavable
from .inputs.pairs import Pair, StatePair
from .report.rows import Bootstrap, Interval, versions
from .report.table import counted, say
from .request import Training
from .resume import weights_of
from .saved import calibrated_temperature, load_calibrated
from .stages.stage import Stage, State
from .stages.train.distill import STEPS_A_ROUND, Distillation, Recipe, write_into
from .stages.train.parts import ALL, TrainedRows, parts_of

HELD_OUT_TEXTS = 64  # half of them choose, half measure
AT_ONCE = 32  # texts that are written in one batch


class Outcome(NamedTuple):
    """The result of a training with one loss.

    Attributes:
        chosen_by: α on the texts that choose.
        before, after: `[texts, n]`, α on the texts that measure.
        gain: of their means.
        body: the weights below the head that belong to it.
    """

    loss: str
    chosen_by: float
    before: Tensor
    after: Tensor
    gain: Interval
    steps: int
    drafter: PrunedDrafter
    body: Sequence[Tensor]

    def __str__(self) -> str:
        before, after = (float(rates.double().mean()) for rates in (self.before, self.after))
        return (
            f"{self.loss}, {self.steps} steps: {before:.4f} of the drafts were accepted, now "
            f"{after:.4f}, {with_ends(self.gain)}."
        )


def run_distillation(request: Training) -> int:
    """Train with each loss, and write the best if it is better; returns the exit code, else 1."""
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
    if is_text_drafter(request.drafter):
        raise InputError(f"{request.drafter}: has another tokenizer, and no head to train")
    return trained(request, *loaded(request))


def loaded(request: Training) -> tuple[Pair, Train]:
    """Load the pair, and the stage that trains its drafter."""
    models, drafter, settings = load_calibrated(request)
    device, dtype = models.target.device, getattr(torch, request.dtype)
    if device.type != "cpu":
        drafter, _ = load_pruned(request.drafter, device=device)
    return models, Train(drafter.in_dtype(dtype), settings)


def trained(request: Training, models: Pair, stage: Train) -> int:
    """Run the stage, and write what it makes if that is better; returns the exit code."""
    refuse_unsavable(models, request.output)
    checkpoints = [checkpoint_of(request, loss) for loss in dict.fromkeys(request.loss)]
    try:
        state = State.of(request, models)
        with state.progress:
            stage.check(state)
            state.made[stage.name] = outcomes = stage.run(state)
    except KeyboardInterrupt:
        files = ", ".join(str(path) for path in checkpoints if path.exists())
        kept = [f"The same command goes on from {files}."] if files else []
        raise KeyboardInterrupt(*kept) from None
    for place in range(len(outcomes)):
        say(stage.describe(state, place))
    best = max(range(len(outcomes)), key=lambda place: outcomes[place].chosen_by)
    if better := outcomes[best].gain.low > 0:
        stage.save(state, best)
        say(f"{request.output} written, trained with {outcomes[best].loss}.")
    else:
        say("The interval of the gain is not above 0: nothing was written.")
    for path in checkpoints:
        path.unlink(missing_ok=True)
    return 0 if better else 1


def with_ends(gain: Interval) -> str:
    return f"{gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"


def checkpoint_of(request: Training, loss: str) -> Path:
    return request.output.with_name(f"{request.output.name}.{loss}.training.tmp")


@dataclass(frozen=True)
class Train(Stage[Training]):
    """Trains a calibrated drafter with each loss.

    Attributes:
        calibrated: its settings.
        drawn: the texts of each round so far, the same for each loss.
    """

    name = "trained drafters"

    drafter: PrunedDrafter
    calibrated: dict[str, Any]
    drawn: dict[int, list[Window]] = field(default_factory=dict)

    def temperature(self, state: State[Training]) -> float:
        calibrated = calibrated_temperature(state.request.drafter, self.calibrated)
        return float(state.request.temperature or calibrated)

    def body(self, state: State[Training]) -> list[torch.nn.Parameter]:
        return state.models.body if state.request.train == ALL else []

    def check(self, state: State[Training]) -> None:
        given, states = state.request, isinstance(state.models, StatePair)
        if self.temperature(state) == 0:
            raise InputError("--temperature: greedy drafts have no gradient; name one above 0")
        if states and given.data == "drafter":
            raise InputError(
                "--data drafter: the drafter reads the target's states, and writes nothing by "
                "itself; needs target or text"
            )
        if (length := given.prompt + given.tokens) > state.models.context:
            raise InputError(
                f"--prompt {given.prompt} and --tokens {given.tokens}: a text is {length} tokens "
                f"long, and the models can read {state.models.context}; give fewer"
            )
        if given.train == ALL and given.dtype != "float32":
            raise InputError(f"--dtype {given.dtype}: needs float32 with --train all")

    def run(self, state: State[Training]) -> list[Outcome]:
        held_out = state.held_out.documents
        if (found := len(held_out)) < 4:
            raise InputError(
                f"{counted(found, 'document')} {'is' if found == 1 else 'are'} held out; needs 4, "
                "two to choose a drafter by and two to measure it on: name them with --held-out, "
                "or give more text"
            )
        chooses, measures = (
            self.draw(state, "target", held_out[half::2], HELD_OUT_TEXTS // 2, half)
            for half in (0, 1)
        )
        for half, texts in enumerate((chooses, measures)):
            if len({text.document for text in texts}) < 2:
                raise InputError(
                    f"1 of the {len(held_out[half::2])} held-out documents has "
                    f"{state.request.prompt} tokens or more (--prompt), of those that "
                    f"{('choose', 'measure')[half]}; needs two, for an interval: hold out longer "
                    "ones"
                )
        losses = dict.fromkeys(state.request.loss)
        return [self.train(state, loss, chooses, measures) for loss in losses]

    def describe(self, state: State[Training], place: int) -> str:
        return str(state.made[self.name][place])

    def draw(
        self,
        state: State[Training],
        data: str,
        documents: Sequence[Document],
        count: int,
        turn: int,
    ) -> list[Window]:
        """So many texts, from places and with words that `turn` chooses.

        To train on, from any place; held out (turns 0 and 1), from each document alike, as the
        interval is over documents.
        """
        given, ids = state.request, [document.ids for document in documents]
        length = given.prompt + (given.tokens if data == "text" else 0)
        first = first_token(state.models.tokenizer)
        try:
            positions = count * length if turn < 2 else sum(map(len, ids))
            every = cut_windows(ids, positions, length, first=first)
        except ValueError as error:
            raise InputError(str(error).removeprefix("cut_windows: ")) from error
        seed = given.seed * 1_000_003 + turn
        generator = torch.Generator().manual_seed(seed)
        order: list[int] = torch.randperm(len(every), generator=generator, device="cpu").tolist()
        chosen = [every[order[place % len(order)]] for place in range(count)]
        if data == "text":
            return chosen
        # In batches a target alone writes as fast as with drafts, and has the same distribution.
        writes = state.models.drafter if data == "drafter" else state.models.target
        decoder, written = SpeculativeDecoder(HuggingFaceModel(writes), draft_length=0), []
        parts = [range(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE)]
        for part in state.progress.each(parts, "Writing held-out text") if turn < 2 else parts:
            written += decoder.generate(
                [chosen[place].ids for place in part],
                max_new_tokens=given.tokens,
                temperature=self.temperature(state),
                seeds=[(seed * HELD_OUT_TEXTS**3 + place) % 2**63 for place in part],
            ).tokens
        return [
            Window(window.document, [*window.ids, *new])
            for window, new in zip(chosen, written, strict=True)
        ]

    def train(
        self,
        state: State[Training],
        loss: str,
        chooses: Sequence[Window],
        measures: Sequence[Window],
    ) -> Outcome:
        given, models, documents = state.request, state.models, state.text.documents
        device = models.target.device
        weight, bias = models.drafter_head
        full_head = weight.to(device), None if bias is None else bias.to(device)
        try:
            parts = self._parts(state, full_head)
        except ValueError as error:
            raise InputError(f"--train {given.train}: {error}") from error
        body = self.body(state)
        came = [parameter.detach().clone() for parameter in body]
        sources = [document.source for document in documents]
        files = [*map(weights_of, (given.target, given.drafter, given.drafter / MODEL))]
        # A drafter with another body writes other texts.
        drawn = {} if body and given.data == "drafter" else self.drawn

        def draw(turn: int) -> Sequence[Window]:
            if turn not in drawn:
                count = given.batch * STEPS_A_ROUND
                drawn[turn] = self.draw(state, given.data, documents, count, turn + 2)
            return drawn[turn]

        training = Distillation(
            self._read(state),
            parts,
            draw,
            chooses,
            measures,
            Recipe(
                *(loss, self.temperature(state), given.steps, given.batch, given.learning_rate),
                prompt=given.prompt,
            ),
            body=body,
            about=repr((given.data, given.seed, given.tokens, given.draft_length, sources, files)),
            checkpoint=checkpoint_of(given, loss),
        )
        bootstrap = Bootstrap([window.document for window in chooses], seed=given.seed)

        def report(step: int, rates: Tensor) -> None:
            gain = with_ends(bootstrap.mean(rates - training.first))
            state.progress.say(f"{loss}, step {step}: {float(rates.mean()):.4f} accepted, {gain}")

        drafter = training.run(state.progress.each, report)
        after = training.acceptance(measures)
        over = Bootstrap([window.document for window in measures], seed=given.seed)
        outcome = Outcome(
            loss,
            training.best_acceptance,
            training.before,
            after,
            over.mean(after - training.before),
            training.step,
            drafter,
            [parameter.detach().clone() for parameter in body],
        )
        write_into(body, came)
        return outcome

    def _parts(self, state: State[Training], full_head: FullHead) -> TrainedRows:
        return parts_of(state.request.train, self.drafter, full_head)

    def _read(self, state: State[Training]) -> Read:
        state.models.network.requires_grad_(False)
        for parameter in self.body(state):
            parameter.requires_grad_()
        return state.models.training_read(state.request.draft_length)

    def settings(self, state: State[Training], place: int) -> dict[str, Any]:
        given, best = state.request, state.made[self.name][place]
        names = ("train", "data", "batch", "learning_rate", "prompt", "tokens", "seed")
        distilled = {
            **{name: getattr(given, name) for name in names},
            **{"loss": best.loss, "temperature": self.temperature(state), "steps": best.steps},
            "acceptance": float(best.after.double().mean()),
            **dict(zip(("gain", "gain_low", "gain_high"), best.gain, strict=True)),
            "versions": versions(),
            "text": state.text.sources,
            "held_out": state.held_out.sources,
        }
        earlier = self.calibrated.get("distilled", [])
        return {**self.calibrated, "distilled": [*earlier, distilled]}

    def save(self, state: State[Training], place: int) -> None:
        best: Outcome = state.made[self.name][place]
        write_into(self.body(state), best.body)
        drafter = best.drafter.in_dtype(state.models.drafter_dtype)
        with naming_out():
            self._write(state, drafter, self.settings(state, place))

    def _write(
        self, state: State[Training], drafter: PrunedDrafter, settings: dict[str, Any]
    ) -> None:
        given, models = state.request, state.models
        model, tokenizer = models.saved_drafter, models.tokenizer
        save_drafter(given.output, model, tokenizer, drafter, settings, overwrite=given.overwrite)
