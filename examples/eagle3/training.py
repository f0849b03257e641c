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
from transformers import DynamicCache

from rdk_cuda import Vocabulary
from rdk_cuda.files import write_whole
from rdk_cuda.integrations.eagle3 import Eagle3Network

# Logits of this many positions are held at a time.
LOSS_ROWS = 256
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
        seed: of the order of the text and of the first weights.
    """

    steps: int
    context: int = 128
    batch: int = 8
    depth: int = 3
    decay: float = 0.8
    learning_rate: float = 1e-3
    own_head: bool = False
    seed: int = 1


class Training:
    """A network, its optimizer, and where in the text they are.

    Args:
        target: a causal model of Hugging Face in evaluation mode.
        network: to be trained; its embeddings and, unless the recipe says so, its head stay fixed.
        vocabulary: the tokens of its head.
        text: `[n]` token ids.
        checkpoint: written now and then, and gone on from.
    """

    def __init__(
        self,
        target: Any,
        network: Eagle3Network,
        vocabulary: Vocabulary,
        text: Tensor,
        recipe: Recipe,
        checkpoint: Path,
    ) -> None:
        self.target, self.network, self.recipe = target, network, recipe
        self.text, self.checkpoint = text, checkpoint
        self.head = target.get_output_embeddings().weight.detach()[vocabulary.draft_ids]
        network.embed_tokens.requires_grad_(False)
        network.lm_head.requires_grad_(recipe.own_head)
        self.layers = network.config.layers_read(target.config.get_text_config().num_hidden_layers)
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.01)
        self.step = 0
        digest = hashlib.sha256(text.numpy().tobytes())
        digest.update(repr({**asdict(recipe), "steps": 0}).encode())
        digest.update(vocabulary.draft_ids.numpy().tobytes())
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
            "network": {k: v for k, v in self.network.state_dict().items() if "embed" not in k},
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
        loss = self._loss(self._blocks())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    def _blocks(self) -> Tensor:
        """`[batch, context]` tokens, from places that depend on the seed and the step alone."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + self.step)
        last = len(self.text) - self.recipe.context
        starts = torch.randint(last, (self.recipe.batch,), generator=generator)
        return self.text[starts[:, None] + torch.arange(self.recipe.context)]

    def _loss(self, blocks: Tensor) -> Tensor:
        with torch.no_grad():
            output = self.target.base_model(blocks, output_hidden_states=True, use_cache=False)
            read = torch.cat([output.hidden_states[at] for at in self.layers], dim=-1).float()
            final = output.last_hidden_state[:, 1:]
        # Entry i is made of token i + 1 and state i, and predicts token i + 2.
        tokens, states = blocks[:, 1:], self.network.fuse(read[:, :-1])
        width, cache = tokens.shape[1], DynamicCache()
        places = torch.arange(width)
        total, weights = states.new_zeros(()), 0.0
        for depth in range(self.recipe.depth):
            ahead = torch.nn.functional.pad(tokens[:, depth:], (0, depth))
            hidden = self.network(
                ahead, states, (places + depth)[None], unrolled_mask(width, depth), cache
            )
            known = width - depth
            loss = Distillation.apply(  # type: ignore[no-untyped-call]
                self.network.norm(hidden[:, :known]).flatten(0, 1),
                self.network.lm_head.weight,
                final[:, depth:].flatten(0, 1),
                self.head,
            )
            weight = self.recipe.decay**depth
            total, weights = total + weight * loss, weights + weight
            states = self.network.handed_on(hidden)
        return total / weights


def unrolled_mask(width: int, depth: int) -> Tensor:
    """`[1, 1, width, (depth + 1) width]`: entry i sees the states up to i, then its own draft."""
    causal = torch.full((width, width), torch.finfo(torch.float32).min).triu(1)
    own = torch.full((width, width), torch.finfo(torch.float32).min).fill_diagonal_(0.0)
    return torch.cat([causal] + [own] * depth, dim=1)[None, None]


class Distillation(torch.autograd.Function):
    """Mean cross-entropy of `softmax(state head^T)` under `softmax(final target_head^T)`.

    Row by row, so that the logits of a whole batch never exist.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, state: Tensor, head: Tensor, final: Tensor, target_head: Tensor
    ) -> Tensor:
        with torch.no_grad():
            rows, columns = state.bfloat16(), head.bfloat16()
            target_rows, target_columns = final.bfloat16(), target_head.bfloat16()
            state_gradient = torch.empty_like(rows)
            head_gradient = torch.zeros_like(head) if head.requires_grad else None
            total = torch.zeros(())
            for part in torch.arange(len(rows)).split(LOSS_ROWS):
                expected = (target_rows[part] @ target_columns.T).float().softmax(-1)
                log_q = (rows[part] @ columns.T).float().log_softmax(-1)
                total -= (expected * log_q).sum()
                error = ((log_q.exp() - expected) / len(rows)).bfloat16()
                state_gradient[part] = error @ columns
                if head_gradient is not None:
                    head_gradient += error.T @ rows[part]
            ctx.save_for_backward(state_gradient.to(state.dtype), head_gradient)
            return total / len(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        state_gradient, head_gradient = ctx.saved_tensors
        scaled = None if head_gradient is None else head_gradient * gradients[0]
        return state_gradient * gradients[0], scaled, None, None
