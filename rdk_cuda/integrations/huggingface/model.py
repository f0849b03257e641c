"""Hugging Face causal language models behind `rdk_cuda.decoding.CausalModel`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._ops.inputs import check_shape, check_tensor, whole_number
from ...decoding import Output
from ...decoding.models import Ragged
from ...decoding.trees import branch
from .attention import context_length, layers_of
from .library import cache_argument, not_served, unwrapped
from .model_check import check
from .placement import weight_of
from .row_cache import RowCache
from .slot_cache import SlotCache, lay_out, pieces
from .states import states_of
from .unserved import refuse_other_layers, refuse_unsupported_model

if TYPE_CHECKING:
    from .image_prompts import ImagePrompts
    from .recurrent_cache import RecurrentCache

# Where layers are recurrent, so few tokens are one pass, also if not all of them are kept.
_ONE_PASS = 16


class HuggingFaceModel:
    """A Hugging Face causal language model whose cache rolls back per sequence.

    Args:
        model: from `AutoModelForCausalLM` (Transformers 5.0 or later) in evaluation mode, with
            attention "sdpa" or "eager"; also with PEFT's adapters, or compiled, of which the model
            inside is run. Layers have full attention, a sliding window, an indexer that chooses
            what is seen, or states that the newer releases keep in a cache: delta rules,
            Mamba, convolutions. Others, whose caches go by slots, run once for each sequence.
        head: `[V_d, d]`, an LM head in place of the model's own: a pruned drafter's, from
            `rdk_cuda.drafter.prune_head`. Brought to the model's dtype and device.
        head_bias: `[V_d]`, its bias if it has one.
        return_hidden: return the final hidden state, too, for dynamic tokens. With a `head` it is
            returned in any case: it is there.
        recent: each attention layer sees only so many of the last tokens, and the sequence's first,
            which models lean on (Xiao et al., arXiv:2309.17453). With a short context, the target
            itself is a drafter that needs no training. None: all that the model sees by itself.
        state_layers: return the inputs of these layers, one after the other, for a drafter that
            reads the target's states (`rdk_cuda.integrations.eagle3`). The number of layers stands
            for the last hidden state, after the last norm.

    Construction compares a few tokens with the model's plain forward: a model that does not respect
    explicit positions and masks, or whose logits are more than its LM head applied to its last
    hidden state where `head` replaces it, shows there. Recurrent layers keep two hooks, which do
    nothing in other calls of the model. Sequences with states go back by as much as was fed since
    the last `rollback`, and what is cut back further is read again; they read a tree in one pass.

    Attributes:
        vocabulary_size: V_d, or the model's own.
        device: of the model's embeddings, and of what `feed` returns. By a `device_map` other
            layers may be elsewhere.
        readable: it reads the ids below this, as it has embeddings.
        waiting: prompts with images, of which the next `reset` lets the library read all but the
            last token.

    Raises:
        TypeError: a model that cannot do it, and why.
        ValueError: wrong shapes, training mode, or logits that differ from the plain forward's.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> target = HuggingFaceModel(model)
        >>> target.reset(2)
        >>> target.feed([[5, 3], [7]], keep=[2, 1]).logits.shape
        torch.Size([2, 2, 50])
    """

    def __init__(
        self,
        model: Any,
        *,
        head: Tensor | None = None,
        head_bias: Tensor | None = None,
        return_hidden: bool = False,
        recent: int | None = None,
        state_layers: Sequence[int] = (),
    ) -> None:
        model = unwrapped(model)
        refuse_unsupported_model(model)
        if recent is not None:
            whole_number("HuggingFaceModel", "recent", recent, 1)
        if state_layers:
            refuse_other_layers(model, state_layers)
        self.waiting: ImagePrompts | None = None
        self._beyond: Tensor | None = None  # by how much positions are beyond slots, [B]
        self.state_layers = tuple(state_layers)
        self._depth: int = model.config.get_text_config(decoder=True).num_hidden_layers
        self.model, self.return_hidden = model, return_hidden or head is not None
        self._runs = model
        if self.return_hidden:  # Llama 4's prefix names no part of it
            base = model.base_model
            self._runs = getattr(model, "model", model) if base is model else base
        self._cache_argument = cache_argument(self._runs)
        embedding = model.get_input_embeddings().weight
        self.device, self.dtype = embedding.device, embedding.dtype
        self.readable, self.context = embedding.shape[0], context_length(model.config)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._cache = self._new_cache()
        self.vocabulary_size = model.get_output_embeddings().weight.shape[0]
        width = model.get_output_embeddings().weight.shape[1]
        here = embedding.new_empty(0, width)  # where heads are, and in which dtype
        if self.return_hidden:
            self._head = checked_head("HuggingFaceModel", *self.full_head, here)
        check(self, self._cache, model)
        if (by_slots := self._cache.layers.by_slots) is not None:
            if recent is not None:
                raise not_served(model, f"has {by_slots}; needs recent=None")
            self._cache.warning = (
                f"HuggingFaceModel: {type(model).__name__} has {by_slots}, so that each sequence "
                "of a batch has a pass of its own, one after the other"
            )
        self._cache.recent = recent
        if head is not None or head_bias is not None:
            self._head = checked_head("HuggingFaceModel", head, head_bias, here)
            self.vocabulary_size = self._head[0].shape[0]
        self.reset(0)

    @property
    def full_head(self) -> tuple[Tensor, Tensor | None]:
        """The model's own LM head: weight `[V, d]`, and bias `[V]` or None."""
        head = self.model.get_output_embeddings()
        bias = getattr(head, "bias", None)
        return _served(weight_of(head)), None if bias is None else _served(weight_of(head, "bias"))

    @property
    def lengths(self) -> list[int]:
        """How many tokens each sequence has been fed and still remembers."""
        return list(self._cache.lengths)

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""
        self._cache.reset(batch_size)
        waiting, self.waiting, self._beyond = self.waiting, None, None
        if waiting is None:
            return
        if (by_slots := self._cache.layers.by_slots) is not None:
            raise not_served(self.model, f"has {by_slots}; needs prompts without images")
        self._cache.append_read(waiting.real)
        if self._cache.apart:
            rows = zip(waiting.input_ids[:, :-1], waiting.real, strict=True)
            self._cache.texts = [ids[own.to(ids.device)].tolist() for ids, own in rows]
        with torch.no_grad():
            self._beyond = waiting.read(self.model, self._cache_argument, self._cache.past)

    def feed(self, tokens: Ragged, keep: Sequence[int]) -> Output:
        """Append `tokens[b]` to sequence b and predict behind its last `keep[b]` tokens.

        As `rdk_cuda.decoding.CausalModel.feed`; one forward pass unless a prompt is long.

        Raises:
            ValueError: ids outside of the vocabulary, or more tokens than the model's context.
        """
        return self._feed(tokens, keep, None)

    def feed_tree(self, tokens: Ragged, keep: Sequence[int], parents: Ragged) -> Output:
        """As `rdk_cuda.decoding.TreeModel.feed_tree`; a mask keeps the branches apart.

        Raises:
            ValueError: as `feed`; nodes that are not among the tokens that are kept; nodes below
                those of an earlier pass, where layers are recurrent.
        """
        if self._cache.apart and any(self._cache.tree_sizes):
            raise ValueError(
                f"HuggingFaceModel.feed_tree: {type(self.model).__name__} reads a tree by its "
                f"paths, and {self._cache.tree_sizes} nodes are read; needs all nodes of a tree in "
                "one pass, so as a drafter use it in chains (DrafterChain)"
            )
        sizes = zip(self._cache.tree_sizes, parents, keep, strict=True)
        for b, (size, above, kept) in enumerate(sizes):
            if not 0 <= len(above) - size <= kept:
                raise ValueError(
                    f"HuggingFaceModel.feed_tree: parents[{b}] has {len(above)} nodes, of which "
                    f"{size} are read, and keep[{b}] is {kept}; needs every new node to be kept"
                )
        return self._feed(tokens, keep, parents)

    @torch.no_grad()
    def keep_paths(self, paths: Ragged) -> None:
        """As `rdk_cuda.decoding.TreeModel.keep_paths`."""
        self._cache.keep_paths(paths)

    def _feed(self, tokens: Ragged, keep: Sequence[int], parents: Ragged | None) -> Output:
        self._refuse_bad_feed(tokens, keep, parents)
        if apart := self._cache.apart:
            sizes = [len(new) for new in tokens]
            if max(sizes) <= _ONE_PASS and any(keep) and sizes != list(keep):
                return _kept(self._feed(tokens, sizes, parents), sizes, keep)
        least, most = min(map(min, filter(len, tokens))), max(map(max, filter(len, tokens)))
        if not 0 <= least <= most < self.readable:
            raise ValueError(
                f"HuggingFaceModel.feed: token ids lie in [{least}, {most}]; "
                f"the model reads ids in [0, {self.readable})"
            )
        ids, real = lay_out(tokens, keep, in_front=not apart)
        states: list[Tensor] = []
        if apart:
            for text, new in zip(self._cache.texts, tokens, strict=True):
                text.extend(new)
        for piece in pieces(ids.shape[1], max(keep), apart=apart, rows=len(tokens)):
            grown = parents if piece.stop == ids.shape[1] else None  # nodes are the last columns
            kept = 0 if apart and piece.stop < ids.shape[1] else max(keep)
            output, read = self._forward(ids[:, piece], real[:, piece], kept, grown)
            states += read
        if not states:
            return output
        rows = zip(torch.cat(states, dim=1), real, strict=True)
        every = bool(real.all())
        kept_states = [row if every else row[own.to(self.device)] for row, own in rows]
        return output._replace(states=kept_states)

    @torch.no_grad()  # recurrent layers read again what is kept
    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is."""
        if len(lengths) != len(self.lengths) or min(lengths, default=0) < 0:
            raise ValueError(
                f"HuggingFaceModel.rollback: lengths is {list(lengths)}; needs "
                f"{len(self.lengths)} of them, each at least 0"
            )
        self._cache.rollback(lengths)
        if self._recurrent is not None and self._recurrent.lengths != list(
            map(len, texts := self._recurrent.texts)
        ):
            self._recurrent.texts = [text[:n] for text, n in zip(texts, self.lengths, strict=True)]
            if self._beyond is not None:
                raise ValueError(
                    f"HuggingFaceModel.rollback: lengths is {list(lengths)}, and prompts with "
                    "images cannot be read again; needs what was fed since the last rollback"
                )
            forgotten = [text[n:] for text, n in zip(texts, self.lengths, strict=True)]
            self._feed(forgotten, [0] * len(texts), None)

    def _new_cache(self) -> SlotCache:
        """A cache for the layers that the model has."""
        config, layers = self.model.config, layers_of(self.model)
        self._recurrent: RecurrentCache | None = None
        if layers.by_slots is not None:
            if self._depth + 1 in self.state_layers:
                raise not_served(
                    self.model,
                    "has a pass for each sequence; needs a drafter that reads states "
                    "of layers, not those before the last norm",
                )
            return RowCache(config, layers, self.dtype, self.device)
        if not layers.recurrent:
            return SlotCache(config, layers, self.dtype, self.device)
        from .mixers import find_mixers
        from .recurrent_cache import RecurrentCache

        mixers = find_mixers(self.model, layers.recurrent)
        self._recurrent = RecurrentCache(config, layers, self.dtype, self.device, mixers)
        return self._recurrent

    @torch.no_grad()
    def _forward(
        self, ids: Tensor, real: Tensor, kept: int, parents: Ragged | None
    ) -> tuple[Output, list[Tensor]]:
        """The output for the last `kept` columns, and the states `[B, W, D]` of all, if asked."""
        positions, masks = self._cache.append(real, parents, final=kept == 0)
        arguments: dict[str, Any] = {
            "input_ids": ids.to(self.device),
            "attention_mask": masks,
            self._cache_argument: self._cache.past,
            "use_cache": True,
        }
        if self._takes_positions:
            if self._beyond is not None:
                positions = positions + self._beyond[:, None]
            arguments["position_ids"] = positions
        if self.state_layers:
            arguments["output_hidden_states"] = True
        reads = self.state_layers
        reading: Any = states_of(self.model, reads, self._depth) if reads else nullcontext()
        with reading as states:
            if not self.return_hidden:
                # All of the model's forward, so its scales and soft caps of logits are kept.
                arguments["logits_to_keep"] = max(kept, 1)
            result = self._cache.run(self._runs, arguments)
            read = [states(result, self.device)] if reads else []
        if not self.return_hidden:
            output = Output(_served(result.logits[:, result.logits.shape[1] - kept :]))
        else:
            last = result.last_hidden_state
            hidden = last[:, last.shape[1] - kept :].to(self.device)
            output = Output(_served(head_logits(hidden, self._head)), _served(hidden))
        return output, read

    def _refuse_bad_feed(self, tokens: Ragged, keep: Sequence[int], parents: Ragged | None) -> None:
        if not len(tokens) == len(keep) == len(self.lengths) or not any(map(len, tokens)):
            raise ValueError(
                f"HuggingFaceModel.feed: got {len(tokens)} sequences of tokens and {len(keep)} of "
                f"keep; needs {len(self.lengths)}, as reset() was told, and one token at least"
            )
        for b, (new, kept, length) in enumerate(zip(tokens, keep, self.lengths, strict=True)):
            if not 0 <= kept <= len(new):
                raise ValueError(f"HuggingFaceModel.feed: keep[{b}] is {kept} of {len(new)} tokens")
            longest = length + len(new)
            if parents is not None:
                deep = (len(branch(parents[b], node)) for node in range(len(parents[b])))
                longest += max(deep, default=0) - len(parents[b])
            if longest > self.context:
                raise ValueError(
                    f"HuggingFaceModel.feed: sequence {b} gets {longest} tokens long; "
                    f"the model's context is {self.context:.0f}; shorten the prompt or "
                    "max_new_tokens"
                )


def _kept(output: Output, sizes: Sequence[int], keep: Sequence[int]) -> Output:
    """Of rows for all tokens, those of the kept ones, at the front."""
    rows = torch.arange(max(keep), device=output.logits.device)
    more = [size - own for size, own in zip(sizes, keep, strict=True)]
    skipped = torch.tensor(more, dtype=torch.int64, device=rows.device)
    at = (skipped[:, None] + rows).clamp(max=output.logits.shape[1] - 1)
    batch = torch.arange(len(at), device=rows.device)[:, None]
    hidden = None if output.hidden is None else output.hidden[batch, at]
    return output._replace(logits=output.logits[batch, at], hidden=hidden)


def checked_head(
    function: str, head: Tensor | None, bias: Tensor | None, own: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Bring a head to where `own` is; refuse one that reads other states, or predicts nothing."""
    if head is None:
        raise ValueError(f"{function}: got head_bias without head; needs both, or neither")
    check_tensor(f"{function}: head", head, "floats", "V_d >= 1", own.shape[1])
    if bias is not None:
        check_shape(f"{function}: head_bias", bias, len(head))
    return head.to(own), None if bias is None else bias.to(own)


def head_logits(hidden: Tensor, head: tuple[Tensor, Tensor | None]) -> Tensor:
    """`[B, n, V]` of hidden states `[B, n, d]` and a head."""
    # As rows: a slice with gaps is multiplied a hundred times slower in bfloat16 on a CPU.
    rows = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[2]), *head)
    logits: Tensor = rows.unflatten(0, hidden.shape[:2])
    return logits


def _served(values: Tensor) -> Tensor:
    """float64 as float32: the library's `generate` scores so, too, and no operator takes more."""
    return values.float() if values.dtype == torch.float64 else values
