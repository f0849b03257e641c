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
from .errors import InputError
from .inputs.documents import (
    Document,
    Text,
    Window,
    calibration_and_held_out,
    cut_windows,
    first_token,
)
from .inputs.loading import quiet, refuse_unsavable
from .inputs.pairs import Pair, StatePair
from .progress import Stages
from .report.rows import Bootstrap, Interval, versions
from .report.table import counted, say
from .request import Training
from .resume import weights_of
from .run import naming_out
from .saved import calibrated_temperature, load_calibrated
from .stages.train.distill import STEPS_A_ROUND, Distillation, Recipe, write_into
from .stages.train.parts import ALL, Trained, parts_of

HELD_OUT_TEXTS = 64  # half of them choose, half measure
AT_ONCE = 32  # texts that are written in one batch


class Outcome(NamedTuple):
    """The result of a training with one loss.

    Attributes:
        chosen_by: α on the texts that choose.
        before, after: `[texts, n]`, α on the texts that measure.
        body: the weights below the head that belong to it.
    """

    loss: str
    chosen_by: float
    before: Tensor
    after: Tensor
    steps: int
    drafter: PrunedDrafter
    body: Sequence[Tensor]


def run_distillation(request: Training) -> int:
    """Train with each loss, and write the best if it is better; returns the exit code, else 1."""
    quiet()
    with naming_out():
        refuse_existing(request.output, request.overwrite)
    if is_text_drafter(request.drafter):
        raise InputError(f"{request.drafter}: has another tokenizer, and no head to train")
    return trained(Job.of(request))


def trained(job: Job) -> int:
    """Do the job; returns the exit code."""
    request = job.request
    refuse_unsavable(job.models, request.output)
    text, held_out = job.texts
    try:
        with Stages() as stages:
            outcomes, measures = job.run(text.documents, held_out.documents, stages)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*job.kept) from None
    best = max(outcomes, key=lambda outcome: outcome.chosen_by)
    bootstrap = Bootstrap([window.document for window in measures], seed=request.seed)
    gain = bootstrap.mean(best.after - best.before)
    for outcome in outcomes:
        say(in_words(outcome, bootstrap.mean(outcome.after - outcome.before)))
    if better := gain.low > 0:
        sources = {"text": text.sources, "held_out": held_out.sources}
        job.save(best, gain, sources)
        say(f"{request.output} written, trained with {best.loss}.")
    else:
        say("The interval of the gain is not above 0: nothing was written.")
    for loss in job.losses:
        job.checkpoint(loss).unlink(missing_ok=True)
    return 0 if better else 1


def in_words(outcome: Outcome, gain: Interval) -> str:
    before, after = (float(rates.double().mean()) for rates in (outcome.before, outcome.after))
    return (
        f"{outcome.loss}, {outcome.steps} steps: {before:.4f} of the drafts were accepted, now "
        f"{after:.4f}, {with_ends(gain)}."
    )


def with_ends(gain: Interval) -> str:
    return f"{gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"


@dataclass(frozen=True)
class Job:
    """A training of one pair, as the command line says.

    Attributes:
        drawn: the texts of each round so far, the same for each loss.
    """

    request: Training
    models: Pair
    drafter: PrunedDrafter
    settings: dict[str, Any]
    drawn: dict[int, list[Window]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Training) -> Job:
        models, drafter, settings = load_calibrated(request)
        device, dtype = models.target.device, getattr(torch, request.dtype)
        if device.type != "cpu":
            drafter, _ = load_pruned(request.drafter, device=device)
        job = cls(request, models, drafter.in_dtype(dtype), settings)
        job.refuse_impossible()
        return job

    @property
    def texts(self) -> tuple[Text, Text]:
        given, models = self.request, self.models
        return calibration_and_held_out(
            models.tokenizer, given.text, given.held_out, models.context, given.draft_length
        )

    @property
    def temperature(self) -> float:
        calibrated = calibrated_temperature(self.request.drafter, self.settings)
        return float(self.request.temperature or calibrated)

    @property
    def losses(self) -> list[str]:
        return list(dict.fromkeys(self.request.loss))

    @property
    def body(self) -> list[torch.nn.Parameter]:
        return self.models.body if self.request.train == ALL else []

    def refuse_impossible(self) -> None:
        given, states = self.request, isinstance(self.models, StatePair)
        if self.temperature == 0:
            raise InputError("--temperature: greedy drafts have no gradient; name one above 0")
        if states and given.data == "drafter":
            raise InputError(
                "--data drafter: the drafter reads the target's states, and writes nothing by "
                "itself; needs target or text"
            )
        if (length := given.prompt + given.tokens) > self.models.context:
            raise InputError(
                f"--prompt {given.prompt} and --tokens {given.tokens}: a text is {length} tokens "
                f"long, and the models can read {self.models.context}; give fewer"
            )
        if given.train == ALL and given.dtype != "float32":
            raise InputError(f"--dtype {given.dtype}: needs float32 with --train all")

    def run(
        self, documents: Sequence[Document], held_out: Sequence[Document], stages: Stages
    ) -> tuple[list[Outcome], list[Window]]:
        """Train with each loss; what that came to, and the texts that measured it."""
        if (found := len(held_out)) < 4:
            raise InputError(
                f"{counted(found, 'document')} {'is' if found == 1 else 'are'} held out; needs 4, "
                "two to choose a drafter by and two to measure it on: name them with --held-out, "
                "or give more text"
            )
        chooses, measures = (
            self.draw("target", held_out[half::2], HELD_OUT_TEXTS // 2, half, stages)
            for half in (0, 1)
        )
        for half, texts in enumerate((chooses, measures)):
            if len({text.document for text in texts}) < 2:
                raise InputError(
                    f"1 of the {len(held_out[half::2])} held-out documents has "
                    f"{self.request.prompt} tokens or more (--prompt), of those that "
                    f"{('choose', 'measure')[half]}; needs two, for an interval: hold out longer "
                    "ones"
                )
        return [
            self.train(loss, documents, chooses, measures, stages) for loss in self.losses
        ], measures

    def draw(
        self, data: str, documents: Sequence[Document], count: int, turn: int, stages: Stages
    ) -> list[Window]:
        """So many texts, from places and with words that `turn` chooses.

        To train on, from any place; held out (turns 0 and 1), from each document alike, as the
        interval is over documents.
        """
        given, ids = self.request, [document.ids for document in documents]
        length = given.prompt + (given.tokens if data == "text" else 0)
        first = first_token(self.models.tokenizer)
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
        writes = self.models.drafter if data == "drafter" else self.models.target
        decoder, written = SpeculativeDecoder(HuggingFaceModel(writes), draft_length=0), []
        parts = [range(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE)]
        for part in stages.each(parts, "Writing held-out text") if turn < 2 else parts:
            written += decoder.generate(
                [chosen[place].ids for place in part],
                max_new_tokens=given.tokens,
                temperature=self.temperature,
                seeds=[(seed * HELD_OUT_TEXTS**3 + place) % 2**63 for place in part],
            ).tokens
        return [
            Window(window.document, [*window.ids, *new])
            for window, new in zip(chosen, written, strict=True)
        ]

    def train(
        self,
        loss: str,
        documents: Sequence[Document],
        chooses: Sequence[Window],
        measures: Sequence[Window],
        stages: Stages,
    ) -> Outcome:
        given, models = self.request, self.models
        device = models.target.device
        weight, bias = models.drafter_head
        full_head = weight.to(device), None if bias is None else bias.to(device)
        target_head = models.target.get_output_embeddings().weight.detach()
        try:
            parts = self._parts(full_head, target_head)
        except ValueError as error:
            raise InputError(f"--train {given.train}: {error}") from error
        body = self.body
        came = [parameter.detach().clone() for parameter in body]
        sources = [document.source for document in documents]
        files = [*map(weights_of, (given.target, given.drafter, given.drafter / MODEL))]
        # What the drafter writes depends on its body.
        drawn = {} if body and given.data == "drafter" else self.drawn

        def draw(turn: int) -> Sequence[Window]:
            if turn not in drawn:
                count = given.batch * STEPS_A_ROUND
                drawn[turn] = self.draw(given.data, documents, count, turn + 2, stages)
            return drawn[turn]

        training = Distillation(
            self._read(),
            parts,
            draw,
            chooses,
            measures,
            Recipe(
                *(loss, self.temperature, given.steps, given.batch, given.learning_rate),
                prompt=given.prompt,
            ),
            body=body,
            about=repr((given.data, given.seed, given.tokens, given.draft_length, sources, files)),
            checkpoint=self.checkpoint(loss),
        )
        bootstrap = Bootstrap([window.document for window in chooses], seed=given.seed)

        def report(step: int, rates: Tensor) -> None:
            gain = with_ends(bootstrap.mean(rates - training.first))
            said = f"{loss}, step {step}: {float(rates.mean()):.4f} accepted, {gain}"
            stages.console.print(said, highlight=False, soft_wrap=True, markup=False)

        drafter = training.run(stages.each, report)
        outcome = Outcome(
            loss,
            training.best_acceptance,
            training.before,
            training.acceptance(measures),
            training.step,
            drafter,
            [parameter.detach().clone() for parameter in body],
        )
        write_into(body, came)
        return outcome

    def _parts(self, full_head: FullHead, target_head: Tensor) -> Trained:
        return parts_of(self.request.train, self.drafter, full_head, target_head)

    def _read(self) -> Read:
        self.models.network.requires_grad_(False)
        for parameter in self.body:
            parameter.requires_grad_()
        return self.models.training_read(self.request.draft_length)

    def checkpoint(self, loss: str) -> Path:
        out = self.request.output
        return out.with_name(f"{out.name}.{loss}.training.tmp")

    @property
    def kept(self) -> tuple[str, ...]:
        files = [str(path) for path in map(self.checkpoint, self.losses) if path.exists()]
        return (f"The same command goes on from {', '.join(files)}.",) if files else ()

    def save(self, best: Outcome, gain: Interval, sources: dict[str, Any]) -> None:
        given, models = self.request, self.models
        write_into(self.body, best.body)
        names = ("train", "data", "batch", "learning_rate", "prompt", "tokens", "seed")
        distilled = {
            **{name: getattr(given, name) for name in names},
            **{"loss": best.loss, "temperature": self.temperature, "steps": best.steps},
            "acceptance": float(best.after.double().mean()),
            **dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)),
            "versions": versions(),
            **sources,
        }
        earlier = self.settings.get("distilled", [])
        settings = {**self.settings, "distilled": [*earlier, distilled]}
        with naming_out():
            self._write(best.drafter.in_dtype(models.drafter_dtype), settings)

    def _write(self, drafter: PrunedDrafter, settings: dict[str, Any]) -> None:
        given, models = self.request, self.models
        model, tokenizer = models.saved_drafter, models.tokenizer
        save_drafter(given.output, model, tokenizer, drafter, settings, overwrite=given.overwrite)
