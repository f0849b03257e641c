"""Train an EAGLE-3 network on its target's own output distributions.

The target reads the text, so nothing is generated or stored. Each step unrolls the network as it
is used (EAGLE-3's training-time test): first on the target's states, then on what it returned
itself for the tokens before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from examples.demo.gemma import fast_dtype
from rdk_cuda import Vocabulary
from rdk_cuda.files import write_whole
from rdk_cuda.integrations.eagle3 import Eagle3Network
from rdk_cuda.integrations.eagle3.unrolled import unrolled

from .distillation import Distillation, sampled_columns

WARMUP_STEPS, DECAY_FRACTION = 50, 0.4


@dataclass(frozen=True)
class Recipe:
    """How long and on what a network is trained.

    Attributes:
        steps: of the optimizer.
        context: tokens of a block of text.
        batch: blocks of a step.
        depth: how many tokens of a draft are unrolled.
        decay: what a token further along a draft counts, relative to the one before.
        own_head: train the rows of the head, too. Else they are the target's.
        columns: tokens of the head that the loss of a step counts; see `sampled_columns`.
        seed: of the order of the text and of the first weights.
    """

    steps: int
    context: int = 128
    batch: int = 8
    depth: int = 3
    decay: float = 0.8
    learning_rate: float = 1e-3
    own_head: bool = False
    columns: int = 16384
    seed: int = 1


class Training:
    """A network, its optimizer, and where in the text they are.

    Args:
        target: a causal model of Hugging Face in evaluation mode.
        network: to be trained; its embeddings and, unless the recipe says so, its head stay fixed.
        vocabulary: the tokens of its head.
        text: `[n]` token ids.
        checkpoint: written now and then, and gone on from.
        begin: the token that texts of this target begin with, if there is one.
    """

    def __init__(
        self,
        target: Any,
        network: Eagle3Network,
        vocabulary: Vocabulary,
        text: Tensor,
        recipe: Recipe,
        checkpoint: Path,
        begin: int | None = None,
    ) -> None:
        self.target, self.network, self.recipe = target, network, recipe
        self.text, self.checkpoint = text, checkpoint
        self.begin = torch.tensor([] if begin is None else [begin], dtype=torch.int64)
        ids, head = vocabulary.draft_ids, target.get_output_embeddings().weight.detach()
        self.head = head[ids].to(fast_dtype())
        self.column_of = torch.full((len(head),), -1).index_put((ids,), torch.arange(len(ids)))
        frequency = torch.bincount(text, minlength=len(head))[ids]
        self.order = frequency.argsort(descending=True, stable=True)
        network.embed_tokens.requires_grad_(False)
        network.lm_head.requires_grad_(recipe.own_head)
        self.layers = network.config.layers_read(target.config.get_text_config().num_hidden_layers)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.fixed = {k for k, v in network.named_parameters() if not v.requires_grad}
        self.optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.01)
        self.step = 0
        digest = hashlib.sha256(text.numpy().tobytes())
        digest.update(repr({**asdict(recipe), "steps": 0}).encode())
        digest.update(ids.numpy().tobytes())
        self.belongs_to = digest.hexdigest()

    def run(self) -> Iterator[float]:
        """Take the steps that are left; yields the mean loss of a token in nats."""
        self._resume()
        self.network.train()
        while self.step < self.recipe.steps:
            yield self._take_step()
        self.network.eval()

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {
            "step": self.step,
            "belongs_to": self.belongs_to,
            "network": {k: v for k, v in self.network.state_dict().items() if k not in self.fixed},
            "optimizer": self.optimizer.state_dict(),
        }
        write_whole(self.checkpoint, lambda unfinished: torch.save(state, unfinished))

    def _resume(self) -> None:
        if not self.checkpoint.is_file():
            return
        state: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        if state["belongs_to"] != self.belongs_to:
            raise ValueError(
                f"{self.checkpoint} is of another recipe, vocabulary or text; delete it, or name "
                "another --work"
            )
        self.network.load_state_dict(state["network"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _take_step(self) -> float:
        factor = min(
            (self.step + 1) / WARMUP_STEPS,
            1.0,
            (self.recipe.steps - self.step) / (DECAY_FRACTION * self.recipe.steps),
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * factor
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + self.step)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.target.dtype == torch.bfloat16):
            loss = self._loss(self._blocks(generator), generator)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    def _blocks(self, generator: torch.Generator) -> Tensor:
        """`[batch, context]` tokens, each as if a text began there."""
        width = self.recipe.context - len(self.begin)
        starts = torch.randint(len(self.text) - width, (self.recipe.batch,), generator=generator)
        read = self.text[starts[:, None] + torch.arange(width)]
        return torch.cat([self.begin.expand(len(read), -1), read], dim=1)

    def _loss(self, blocks: Tensor, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            output = self.target.base_model(blocks, output_hidden_states=True, use_cache=False)
            read = torch.cat([output.hidden_states[at] for at in self.layers], dim=-1).float()
            final = output.last_hidden_state[:, 1:]
        width, predictions = blocks.shape[1] - 1, []
        weights = torch.zeros(self.recipe.depth, len(blocks), width)
        for depth, hidden in enumerate(unrolled(self.network, blocks, read, self.recipe.depth)):
            # What entry i predicts here is what entry i + depth predicts first.
            known = self.network.norm(hidden[:, : width - depth])
            predictions.append(pad(known, (0, 0, depth, 0)).flatten(0, 1))
            weights[depth, :, depth:] = self.recipe.decay**depth / (width - depth)
        columns, log_counts = self._columns(blocks, generator)
        return Distillation.apply(  # type: ignore[no-untyped-call, no-any-return]
            torch.stack(predictions),
            self.network.lm_head.weight[columns] if self.recipe.own_head else self.head[columns],
            final.flatten(0, 1),
            self.head[columns],
            (weights / weights.sum()).flatten(1),
            log_counts,
        )

    def _columns(self, blocks: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        present = self.column_of[blocks.unique()]
        present = present[present >= 0]
        return sampled_columns(self.order, present, self.recipe.columns, generator)
