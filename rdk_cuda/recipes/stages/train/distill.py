"""A drafter is trained by what the target accepts, round by round, and the best one kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....decoding.models import Read, Reading
from ....drafter import PrunedDrafter
from ....files import write_whole
from ....functional import overlap
from ...errors import InputError
from ...inputs.documents import Window
from ...recording import Each, silently
from .losses import TV, OverlapLoss
from .parts import TrainedRows

STEPS_A_ROUND = 10
WARMUP_STEPS, LARGEST_NORM = 10, 1.0

_KEPT = "belongs_to", "step", "stale", "first", "before", "best_acceptance", "best"
"""Kept in a checkpoint, besides parameters and optimizer as they are."""


class DistillationError(InputError, ValueError):
    """A checkpoint of another training, or a loss that is no number."""


@dataclass(frozen=True)
class Recipe:
    """How a drafter is trained: by AdamW, whose learning rate falls to 0 over the steps.

    Attributes:
        loss: one of `LOSSES`.
        temperature: of use, above 0.
        batch: texts of a step.
        patience: rounds without a better drafter, after which it ends.
        prompt: the first tokens of each text, behind which nothing is learned.
    """

    loss: str = TV
    temperature: float = 1.0
    steps: int = 200
    batch: int = 8
    learning_rate: float = 3e-4
    patience: int = 5
    prompt: int = 64


Draw = Callable[[int], Sequence[Window]]
"""The texts of a round, all of one length; the same ones for the same round."""

Report = Callable[[int, Tensor], None]
"""Called after each round with the step, and α on the texts that choose, as in `first`."""


class Distillation:
    """One training, which goes on where it was interrupted, to the bit.

    Args:
        read: both models; with a gradient, if `body` is trained.
        trained: the parts that are trained, from `parts_of`.
        draw: the texts that are learned from.
        choosing: texts by which the best drafter is chosen.
        measuring: other texts, on which α before the training is measured.
        body: parameters of the drafter below its head that are trained, too.
        about: whatever else tells this training from another.
        checkpoint: written after each round, and gone on from; None for none.

    Attributes:
        before, first: `[texts, n]`, α before the training, on the texts that measure and choose.
        best_acceptance: α on the latter of the best so far.

    Raises:
        DistillationError: a checkpoint of another training, or models that are not finite.
    """

    def __init__(
        self,
        read: Read,
        trained: TrainedRows,
        draw: Draw,
        choosing: Sequence[Window],
        measuring: Sequence[Window],
        recipe: Recipe,
        *,
        body: Sequence[nn.Parameter] = (),
        about: str = "",
        checkpoint: Path | None = None,
    ) -> None:
        self.read, self.trained, self.draw, self.choosing = read, trained, draw, choosing
        self.recipe, self.checkpoint = recipe, checkpoint
        self.parameters = [*trained.parameters(), *body]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=recipe.learning_rate, weight_decay=0.0
        )
        affinity = trained.drafter.affinity
        self.loss = OverlapLoss(affinity, recipe.loss, recipe.temperature)
        self.step, self.stale = 0, 0
        self.belongs_to = self._digest(about, measuring)
        if checkpoint is not None and checkpoint.is_file():
            self._resume(checkpoint)
            return
        self.first = self.acceptance(choosing)
        self.best_acceptance = float(self.first.mean())
        if not 0 <= self.best_acceptance <= 1:
            raise DistillationError("acceptance is NaN; needs models whose logits are finite")
        self.best = self._copy()
        self.before = self.acceptance(measuring)

    def run(self, each: Each = silently, report: Report | None = None) -> PrunedDrafter:
        """Train, and return the drafter that was accepted most on the texts it is chosen by.

        The body, if it was trained, then has the weights that belong to it.
        """
        texts: Sequence[Window] = ()
        steps = range(self.step, self.recipe.steps)
        for step in each(steps, f"Training: {self.recipe.loss}"):
            place = step % STEPS_A_ROUND
            if place == 0:
                if self.stale >= self.recipe.patience:
                    break
                texts = self.draw(step // STEPS_A_ROUND)
            batch = self.recipe.batch
            self._take_step(texts[place * batch : (place + 1) * batch])
            self.step = step + 1
            if self.step % STEPS_A_ROUND == 0 or self.step == self.recipe.steps:
                self._end_round(report)
        write_into(self.parameters, self.best)
        return self.trained.trained()

    @torch.no_grad()
    def acceptance(self, windows: Sequence[Window]) -> Tensor:
        """`[windows, n]`, `sum_x min(p, q)` of the drafter as it is, behind the prompts."""
        size = self.recipe.batch
        batches = [windows[at : at + size] for at in range(0, len(windows), size)]
        rates = []
        for target_logits, hidden, contexts in chain.from_iterable(map(self._rows, batches)):
            columns = self.trained.columns(hidden, contexts)
            rates.append(
                overlap(
                    target_logits,
                    columns.draft_logits,
                    self.trained.drafter.affinity,
                    self.recipe.temperature,
                    dynamic_tokens=columns.dynamic_tokens,
                    dynamic_logits=columns.dynamic_logits,
                ).cpu()
            )
        return torch.stack(rates)

    def _take_step(self, windows: Sequence[Window]) -> None:
        step, recipe = self.step, self.recipe
        factor = min((step + 1) / WARMUP_STEPS, 1.0) * (1 - step / recipe.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * factor
        self.optimizer.zero_grad()
        for target_logits, hidden, contexts in self._rows(windows):
            columns = self.trained.columns(hidden, contexts)
            loss = self.loss(target_logits, *columns) / len(windows)
            if not bool(loss.isfinite()):
                raise DistillationError(
                    f"the loss is {float(loss)} at step {step}; needs models whose logits are "
                    "finite, or a smaller learning rate"
                )
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, LARGEST_NORM)
        self.optimizer.step()

    def _rows(self, windows: Sequence[Window]) -> Iterator[tuple[Tensor, Tensor, list[list[int]]]]:
        """For each text target logits `[n, V_t]`, states `[n, d]` and contexts, behind its prompt.

        One text after the other: rows of V_t of a whole batch would fill the memory.
        """
        ids = torch.tensor([window.ids for window in windows], dtype=torch.int64, device="cpu")
        reading: Reading = self.read(ids)
        count = min(ids.shape[1] - self.recipe.prompt + 1, reading.hidden.shape[1])
        graph = reading.hidden[:, -count:]
        states = graph.detach().float().requires_grad_(graph.requires_grad)
        for window, logits, hidden in zip(windows, reading.target_logits, states, strict=True):
            yield logits[-count:], hidden, window.contexts[-count:]
        if states.grad is not None:
            graph.backward(states.grad.to(graph.dtype))  # type: ignore[no-untyped-call]

    def _end_round(self, report: Report | None) -> None:
        rates = self.acceptance(self.choosing)
        now = float(rates.mean())
        self.stale += 1
        if now > self.best_acceptance:
            self.best_acceptance, self.best, self.stale = now, self._copy(), 0
        if self.checkpoint is not None:
            own = {name: getattr(self, name) for name in _KEPT}
            state = {**own, "now": self._copy(), "optimizer": self.optimizer.state_dict()}

            def write(unfinished: Path) -> None:
                with unfinished.open("wb") as file:  # whose errors torch's own file would hide
                    torch.save(state, file)

            write_whole(self.checkpoint, write)
        if report is not None:
            report(self.step, rates)

    def _resume(self, checkpoint: Path) -> None:
        try:
            state: Any = torch.load(checkpoint, map_location="cpu", weights_only=True)
            if own := state["belongs_to"] == self.belongs_to:
                for values in (state["best"], state["now"]):
                    write_into(self.parameters, values)
                self.optimizer.load_state_dict(state["optimizer"])
                vars(self).update({name: state[name] for name in _KEPT})
        except Exception as error:  # whatever torch raises of a file that is not its own
            raise DistillationError(
                f"{checkpoint} is no checkpoint of this program, or not a whole one "
                f"({error!r:.100}); move or delete it to begin anew"
            ) from error
        if not own:
            raise DistillationError(
                f"{checkpoint} is of another training; give the same arguments to go on, or "
                "move or delete it to begin anew"
            )

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().cpu().clone() for parameter in self.parameters]

    def _digest(self, about: str, measuring: Sequence[Window]) -> str:
        texts = self.choosing, measuring
        digest = hashlib.sha256(repr((asdict(self.recipe), about, *texts)).encode())
        for value in self._copy():
            digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@torch.no_grad()
def write_into(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value.view_as(parameter))
