"""Targets and drafters of several sizes, and the heads that a drafter can have.

Those of serving size have random weights: what a pass costs does not depend on what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import Affinity
from rdk_cuda.calibration.methods import FULL, PRUNED, VIRTUAL

from ...bench.workloads import VIRTUAL as VIRTUAL_ROWS
from ...bench.workloads import affinity_of

SIZES = ("tiny", "demo", "serving")
PERIOD = 1_000_003
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": 2048,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "serving": {  # Llama 3.1 8B
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}


@dataclass(frozen=True)
class Pair:
    """Two Hugging Face models that share their vocabulary.

    Attributes:
        about: what they are, for the table.
    """

    target: Any
    drafter: Any
    about: str

    @property
    def full_head(self) -> Tensor:
        """The drafter's full head, `[V, d]`."""
        weight: Tensor = self.drafter.get_output_embeddings().weight
        return weight.detach()


def make_pair(size: str, device: torch.device, target_layers: int) -> Pair:
    """The demo's models, or random ones: a drafter of one layer, a target of `target_layers`."""
    from examples.demo.shipped import load_shipped
    from rdk_cuda.cli.models import quiet

    quiet()
    if size == "demo":
        models = load_shipped(device.type)
        return Pair(models.target, models.drafter, "the demo's models, float32")
    dtype = torch.bfloat16 if size == "serving" else torch.float32
    target = _random_llama(size, target_layers, device, dtype)
    # It has the target's embedding and head, as EAGLE drafters do: a gigabyte less.
    drafter = _random_llama(size, 1, device, dtype, vocab_size=8)
    drafter.set_input_embeddings(target.get_input_embeddings())
    drafter.set_output_embeddings(target.get_output_embeddings())
    drafter.config.vocab_size = target.config.vocab_size
    shape = SHAPES[size]
    about = (
        f"random Llama layers, d {shape['hidden_size']:,}, target of {target_layers} and drafter "
        f"of one, one embedding and head for all, {str(dtype).removeprefix('torch.')}"
    )
    return Pair(target, drafter, about)


def _random_llama(
    size: str, layers: int, device: torch.device, dtype: torch.dtype, **changes: int
) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape: dict[str, Any] = {**SHAPES[size], **changes}
    config = LlamaConfig(
        **shape, num_hidden_layers=layers, max_position_embeddings=4096, tie_word_embeddings=True
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.to_empty(device=device).tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    for weight in model.parameters():
        _fill(weight.data)
    return model


def _fill(weight: Tensor) -> None:
    """Small random numbers, or ones in a norm; a billion different ones would take minutes.

    They repeat with a period that no width divides, so that no two rows are the same.
    """
    if weight.dim() == 1:
        weight.fill_(1)
        return
    random = torch.Generator().manual_seed(0)
    some = (0.02 * torch.randn(PERIOD, generator=random)).to(weight)
    for part in weight.view(-1).split(PERIOD):
        part.copy_(some[: part.numel()])


@dataclass(frozen=True)
class Head:
    """A drafter's LM head, by the method that it belongs to.

    Attributes:
        method: one of `rdk_cuda.calibration.methods`.
        keep: the share of the vocabulary that it keeps.
    """

    method: str
    keep: float

    @property
    def name(self) -> str:
        """The head's name, to read."""
        return self.method if self.method == FULL else f"{self.method}, {100 * self.keep:.4g} %"

    def rows(self, vocabulary: int) -> int:
        """V_d, with virtual tokens."""
        virtual = VIRTUAL_ROWS if self.method == VIRTUAL else 0
        return round(self.keep * vocabulary) + virtual

    def affinity(self, vocabulary: int) -> Affinity:
        """An affinity of its size; which tokens its rows lead to does not change what it costs."""
        sampler = "virtual" if self.method == VIRTUAL else "pruned"
        return affinity_of(sampler, vocabulary, self.rows(vocabulary))

    def weight(self, full: Tensor) -> Tensor:
        """Rows of its own in memory, as a pruned drafter has them."""
        rows = self.rows(full.shape[0])
        return full if rows == full.shape[0] else full[:rows].clone()


HEADS = (
    Head(FULL, 1.0),
    Head(PRUNED, 0.25),
    Head(VIRTUAL, 0.25),
    Head(PRUNED, 0.0625),
    Head(VIRTUAL, 0.0625),
)
