"""A pretrained drafter, steered by the target's states (Berdoz et al., arXiv:2511.09844).

The prompt is read unsteered, as in the paper. After that, all tokens that the drafter reads in a
step are steered by one vector, made of the target's state at the last verified token. The drafter's
cache stays as each step has made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...decoding import Output
from ...decoding.models import Ragged, Read, Reading
from ...drafter import SavedDrafterError
from ...files import FLOATS, TensorFile
from ...integrations.huggingface.library import not_served
from ...integrations.huggingface.model import HuggingFaceModel

_TENSORS = ("mix.weight", "mix.bias", "norm.weight", "norm.bias", "out.weight")
_FILE = TensorFile("Steering", "rdk_cuda.steering", 1, _TENSORS, SavedDrafterError)


class Steering(nn.Module):
    """An addend in the MLP of each of a drafter's layers, made of the target's states.

    With the states s of three of the target's layers, one after the other,
    `vector = LayerNorm(mix(s))`, and the MLP of the drafter's layer l gives
    `down(act(gate(x)) * (up(x) + out_l(vector)))`. At first `mix` adds the three states up, and
    `out` is 0, so nothing is steered.

    Args:
        state_layers: three of the target's layers, as `HuggingFaceModel` takes them.
        state_size: d_t, the width of the target's states.
        layers, width: how many layers the drafter has, and how wide their MLPs are.
    """

    def __init__(
        self, state_layers: Sequence[int], *, state_size: int, layers: int, width: int
    ) -> None:
        super().__init__()
        self.state_layers, self.layers = tuple(state_layers), layers
        self.mix = nn.Linear(3 * state_size, state_size)
        self.norm = nn.LayerNorm(state_size)
        self.out = nn.Linear(state_size, layers * width, bias=False)
        with torch.no_grad():
            same = torch.eye(state_size, dtype=torch.float32, device="cpu")
            self.mix.weight.copy_(same.repeat(1, 3))
            self.mix.bias.zero_()
            self.out.weight.zero_()

    @classmethod
    def between(cls, target: Any, drafter: Any) -> Steering:
        """For two Hugging Face models, with a low, a middle and a high layer, as in the paper."""
        config, ups = target.config.get_text_config(), up_projections(drafter)
        depth = config.num_hidden_layers
        layers = min(4, depth), depth // 2 + 1, max(depth - 2, 0)
        size = {"state_size": config.hidden_size, "layers": len(ups)}
        return cls(layers, **size, width=ups[0].out_features)

    def vector(self, states: Tensor) -> Tensor:
        """`[..., d_t]` of the target's states `[..., 3 d_t]`."""
        vector: Tensor = self.norm(self.mix(states.to(self.mix.weight)))
        return vector

    def added(self, vector: Tensor) -> Tensor:
        """`[layers, ..., width]` of vectors `[..., d_t]`."""
        added: Tensor = self.out(vector).unflatten(-1, (self.layers, -1)).movedim(-2, 0)
        return added

    def forward(self, states: Tensor) -> Tensor:
        """`[layers, ..., width]` of the target's states `[..., 3 d_t]`."""
        return self.added(self.vector(states))

    def check(self, name: str, drafter: Any, target: Any = None) -> None:
        """Refuse models with other layers than this was made for."""
        found = [up.out_features for up in up_projections(drafter)]
        width = self.out.out_features // self.layers
        if found != [width] * self.layers:
            raise SavedDrafterError(
                f"{name}: steering is for {self.layers} layers with MLPs of {width}, and "
                f"{type(drafter).__name__} has {found}; needs the drafter that it was trained for"
            )
        config = None if target is None else target.config.get_text_config()
        size, last = self.mix.out_features, max(self.state_layers)
        if config and (config.hidden_size != size or config.num_hidden_layers < last):
            raise SavedDrafterError(
                f"{name}: steering reads states of {size} from layers {self.state_layers}, and "
                f"{type(target).__name__} has {config.num_hidden_layers} layers with states of "
                f"{config.hidden_size}; needs the target that it was trained for"
            )

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file atomically; `load` gives the same steering back."""
        tensors = {name: each.detach() for name, each in self.state_dict().items()}
        self._check_numbers("Steering.save")
        layers = ",".join(map(str, self.state_layers))
        _FILE.write(Path(path), tensors, {"state_layers": layers, "layers": self.layers})

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> Steering:
        """Read what `save` wrote, check all of it, and move it to `device`.

        Raises:
            SavedDrafterError: a file that is damaged, or of another kind.
        """
        path = Path(path)
        tensors, metadata = _FILE.read(path)
        said = f"{metadata.get('state_layers')},{metadata.get('layers')}"
        if not re.fullmatch(r"\d{1,4},\d{1,4},\d{1,4},[1-9]\d{0,3}", said, re.ASCII):
            raise SavedDrafterError(
                f"Steering.load: {path} says state_layers, layers = {said!r:.40}; needs three "
                "layers of the target, and how many the drafter has"
            )
        *state_layers, layers = map(int, said.split(","))
        mix, out = tensors["mix.weight"], tensors["out.weight"]
        size, rows = len(mix) if mix.dim() else 0, len(out) if out.dim() else 0
        found = {(each.dtype, *each.shape) for each in tensors.values()}
        needed = {(mix.dtype, *shape) for shape in ((size, 3 * size), (size,), (rows, size))}
        if found != needed or mix.dtype not in FLOATS or not size or not rows or rows % layers:
            shapes = ", ".join(f"{each.dtype} {list(each.shape)}" for each in tensors.values())
            raise SavedDrafterError(
                f"Steering.load: {path} has {shapes}; needs {', '.join(_TENSORS)} to be [d, 3 d], "
                f"[d], [d], [d] and [a multiple of {layers}, d] of one of {FLOATS}"
            )
        steering = cls(state_layers, state_size=size, layers=layers, width=rows // layers)
        steering = steering.to(mix.dtype)
        steering.load_state_dict(tensors)
        steering._check_numbers(f"Steering.load: {path}")
        return steering.to(device).requires_grad_(False)

    def _check_numbers(self, name: str) -> None:
        if not all(bool(each.isfinite().all()) for each in self.state_dict().values()):
            raise SavedDrafterError(f"{name}: steering is not finite; needs finite numbers")


class SteeredModel(HuggingFaceModel):
    """A steered drafter in the decoder, as `rdk_cuda.decoding.StateDrafter`.

    Args:
        model, head, head_bias, return_hidden: as in `HuggingFaceModel`.
        steering: trained for this model and its target. Where its `out` is 0, the model drafts what
            it drafts without it.

    Attributes:
        state_layers: the target's layers whose inputs are read; `HuggingFaceModel` takes them.

    Raises:
        TypeError: a model whose MLPs are of another kind.
        ValueError: a steering for another model.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from rdk_cuda.decoding import SpeculativeDecoder
        >>> from rdk_cuda.integrations.huggingface import HuggingFaceModel
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> target, model = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
        >>> drafter = SteeredModel(model, Steering.between(target, model))
        >>> reads = HuggingFaceModel(target, state_layers=drafter.state_layers)
        >>> decoder = SpeculativeDecoder(reads, drafter, draft_length=3)
        >>> decoder.generate([[5, 3], [7]], max_new_tokens=9).statistics.tokens
        18
    """

    def __init__(
        self,
        model: Any,
        steering: Steering,
        *,
        head: Tensor | None = None,
        head_bias: Tensor | None = None,
        return_hidden: bool = False,
    ) -> None:
        self.steering = steering
        super().__init__(model, head=head, head_bias=head_bias, return_hidden=return_hidden)
        steering.check("SteeredModel", model)
        self.state_layers = steering.state_layers

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""
        super().reset(batch_size)
        self._vectors: list[list[Tensor]] = [[] for _ in range(batch_size)]
        self._prompts = [0] * batch_size
        self._added: Tensor | None = None  # of a step

    @property
    def observed(self) -> list[int]:
        """How many tokens of each sequence it has the target's states of."""
        return list(map(len, self._vectors))

    @torch.no_grad()
    def observe(self, states: Sequence[Tensor]) -> None:
        """Take the target's states of the next n tokens of each sequence.

        The first ones are the prompt's. Nothing in the cache is made again.
        """
        size = 3 * self.steering.mix.out_features
        shapes = [list(new.shape[1:]) for new in states]
        if shapes != [[size]] * len(self._vectors):
            raise ValueError(
                f"SteeredModel.observe: got states of width {shapes}; needs {len(self._vectors)} "
                f"sequences, as reset() was told, and a width of {size}, three states of the "
                "target that the steering was trained for"
            )
        vectors = self.steering.vector(torch.cat(list(states))).split(list(map(len, states)))
        for b, (known, new) in enumerate(zip(self._vectors, vectors, strict=True)):
            self._prompts[b] = self._prompts[b] if known else len(new)
            known.extend(new)
        self._added = None

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is."""
        super().rollback(lengths)
        for b, (known, length) in enumerate(zip(self._vectors, lengths, strict=True)):
            self._prompts[b] = min(self._prompts[b], length)
            del known[length:]
        self._added = None

    @torch.no_grad()
    def _forward(
        self, ids: Tensor, real: Tensor, kept: int, parents: Ragged | None
    ) -> tuple[Output, list[Tensor]]:
        if not any(self._vectors):
            return super()._forward(ids, real, kept, parents)
        if self._added is None:
            none = torch.zeros_like(next(known[-1] for known in self._vectors if known))
            last = [known[-1] if known else none for known in self._vectors]
            self._added = self.steering.added(torch.stack(last)).to(self.device, self.dtype)
        ends = torch.tensor([self.lengths, self._prompts], dtype=torch.int64, device="cpu")
        place = ends[0, :, None] + real.cumsum(1)  # from 1 on
        steered = (ends[1] > 0)[:, None] & (place > ends[1, :, None])
        steered = steered.to(self.device)[:, :, None]
        with _steered(self.model, self._added, lambda added: added[:, None] * steered):
            return super()._forward(ids, real, kept, parents)


def steered_read(
    target: Any, drafter: Any, steering: Steering, draft_length: int, *, prompt_length: int = 1
) -> Read:
    """Read a text as a steered drafter drafts it, with gradients for the steering: to train it.

    Both models read the text once. Behind the prompt the text is cut into drafts of K tokens. All
    tokens of a draft are steered by the target's state before it, as `SteeredModel` does it where
    every draft is accepted. As in `read_drafts`, there is no row after a text's first token.

    Of the drafter those parameters get gradients that require them, of the target none.

    Args:
        target, drafter: Hugging Face models of one vocabulary, as in `calibration.read_models`.
        steering: on any device; its gradients are there.
        draft_length: K.
        prompt_length: how many tokens are read unsteered, at least 1.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> target, drafter = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
        >>> steering = Steering.between(target, drafter)
        >>> logits, hidden = steered_read(target, drafter, steering, 4)(torch.ones(2, 9).long())
        >>> hidden.square().sum().backward()
        >>> logits.shape, steering.out.weight.grad.shape
        (torch.Size([2, 8, 50]), torch.Size([16, 16]))
    """
    if draft_length < 1 or prompt_length < 1:
        raise ValueError(
            f"steered_read: draft_length is {draft_length} and prompt_length {prompt_length}; "
            "needs at least 1"
        )
    steering.check("steered_read", drafter, target)

    def read(ids: Tensor) -> Reading:
        length, prompt = ids.shape[1], min(prompt_length, ids.shape[1])
        with torch.no_grad():
            arguments = {"use_cache": False, "output_hidden_states": True}
            said = target(input_ids=ids.to(target.device), **arguments)
        layers = [said.hidden_states[at].to(drafter.device) for at in steering.state_layers]
        states = torch.cat(layers, -1)[:, prompt - 1 : length - 1 : draft_length]

        def placed(added: Tensor) -> Tensor:
            drafts = added.repeat_interleave(draft_length, 1)[:, : length - prompt]
            return nn.functional.pad(drafts, (0, 0, prompt, 0))

        with _steered(drafter, steering(states), placed):
            output = drafter.base_model(input_ids=ids.to(drafter.device), use_cache=False)
        return Reading(said.logits[:, 1:], output.last_hidden_state[:, 1:])

    return read


def up_projections(model: Any) -> list[Any]:
    """The linear layers in a model's MLPs whose output is steered."""
    layers = getattr(model.base_model, "layers", None) or ()
    found = [getattr(getattr(layer, "mlp", None), "up_proj", None) for layer in layers]
    if not found or not all(hasattr(up, "out_features") for up in found):
        raise not_served(
            model,
            "cannot be steered: a layer has no linear `mlp.up_proj`; needs a drafter with MLPs "
            "such as Llama's, Qwen's or Gemma's",
        )
    return found


@contextmanager
def _steered(model: Any, added: Tensor, placed: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Add `placed(added[l])`, `[B, W, width]`, in the MLP of layer l while the model runs."""

    def hook(own: Tensor) -> Callable[..., Tensor]:
        return lambda _module, _inputs, output: output + placed(own).to(output)

    pairs = zip(up_projections(model), added, strict=True)
    hooks = [up.register_forward_hook(hook(own)) for up, own in pairs]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()
