"""The small head that a drafter's model in vLLM is given, whichever model runner drives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group

from ...affinity import Affinity
from ...drafter import PrunedDrafter
from ...dynamic_tokens import KeptContexts, TokenHead, dynamic_columns, window_of
from ...vocabulary import Vocabulary
from ..draft_arena import DraftArena
from .configuration import UnsupportedConfigurationError, options
from .metrics import Counters
from .rank_comparison import compare_ranks
from .sharded_head import HeadShard
from .token_map import TokenMap

_LONGEST_WINDOW = 4096  # tokens that sources of dynamic tokens are shown, at most


class DraftHead:
    """The part of a proposer or speculator of vLLM that knows the drafter's head.

    Attributes:
        drafter: the small head and its affinity, once the model is loaded.
        arena: what the drafts of the last step were drawn from.
        counters: of what was verified.
        window: how many of a request's last tokens the source of dynamic tokens reads.
    """

    drafter: PrunedDrafter
    arena: DraftArena
    counters: Counters
    window: int
    _states: Callable[[Tensor], Tensor] | None = None
    _scale: tuple[float | None, float]
    _columns: Tensor  # the head's weight, [d, V_d]
    _full_head: TokenHead
    _target: Any
    _calibrated: PrunedDrafter | TokenMap | None
    _reads: Tensor | None = None  # `[V_t]`, what the model reads in the place of each target token
    _read: Tensor  # what it reads; always here, as CUDA graphs of its layers remember the address

    def fit_head(self) -> None:
        """Make `drafter` and `arena`, before vLLM measures how much memory is left for its cache.

        Raises:
            UnsupportedConfigurationError: a model or a calibrated drafter that does not fit.
        """
        model: Any = self.model  # type: ignore[attr-defined]
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        head, processor = getattr(model, "lm_head", None), _found(model, "logits_processor")
        if (shared := _found(model, "shared_head")) is not None:  # the head of a layer, with a norm
            self._states, head = shared, shared.head
        if head is None or processor is None or processor.logits_as_input:
            raise UnsupportedConfigurationError(
                f"the drafter is a {type(model).__name__}, which has "
                "no lm_head or no logits_processor; needs a causal language model with both"
            )
        self._scale = processor.soft_cap, processor.scale
        shard = HeadShard(head)
        self.drafter = self._fitting(model, shard)
        self._columns = self.drafter.weight.t()
        self._full_head = self._head_of_dynamic_tokens(shard)
        self.counters = Counters(self.drafter.vocabulary, self.drafter.affinity.device)
        source: Any = self.drafter.dynamic_tokens
        self.window = min(window_of(source), _LONGEST_WINDOW)
        self.arena = DraftArena(
            self.drafter.affinity,
            config.scheduler_config.max_num_seqs,
            config.speculative_config.num_speculative_tokens,
            dtype=self.drafter.weight.dtype,
            dynamic_width=0 if source is None else int(source.width),
        )

    def _fitting(self, model: Any, shard: HeadShard) -> PrunedDrafter:
        config: Any = self.vllm_config.model_config  # type: ignore[attr-defined]
        target_size = config.get_vocab_size()
        mapping = getattr(model, "draft_id_to_target_id", None)  # EAGLE-3's own vocabulary
        if self._calibrated is None:
            ids = torch.arange(target_size, device="cpu")
            if mapping is not None:
                offsets = mapping.detach().cpu()
                ids = torch.arange(len(offsets), device=offsets.device) + offsets
            vocabulary = Vocabulary(ids, target_size)
            rows, bias = shard.whole(_all_gather)
            own = rows[: len(ids)], None if bias is None else bias[: len(ids)]
            plain = PrunedDrafter(vocabulary, Affinity.intersection(vocabulary), *own)
            return _moved(plain, shard.rows)
        if isinstance(self._calibrated, TokenMap):
            return self._mapped(model, self._calibrated, target_size, shard)
        drafter = self._calibrated
        got = [drafter.affinity.target_size, drafter.weight.shape[1]]
        needs = [target_size, shard.rows.shape[1]]
        if got != needs:
            raise UnsupportedConfigurationError(
                f"the calibrated drafter has [V_t, d] = {got}; the served models have {needs}"
            )
        reduced = mapping is not None or shard.size < got[0]
        if drafter.dynamic_tokens is not None and drafter.lifted is None and reduced:
            raise UnsupportedConfigurationError(
                f"dynamic tokens need a full head, not {shard.size} rows; use --dynamic 0"
            )
        return _moved(drafter, shard.rows)

    def _mapped(
        self, model: Any, mapped: TokenMap, target_size: int, shard: HeadShard
    ) -> PrunedDrafter:
        affinity = mapped.affinity
        got = [affinity.target_size, affinity.draft_size]
        if got != [target_size, shard.size]:
            raise UnsupportedConfigurationError(
                f"the affinity has [V_t, V_d] = {got}; the models that "
                f"are served have {[target_size, shard.size]}: name those that it was made for"
            )
        self._read_as(model, mapped.reads.to(shard.rows.device))
        return _moved(
            PrunedDrafter(mapped.vocabulary, affinity, *shard.whole(_all_gather)), shard.rows
        )

    def _read_as(self, model: Any, reads: Tensor) -> None:
        """Have the model read these tokens in the place of the target's; for -1, none, the first.

        vLLM passes target tokens then, as between equal tokenizers.
        """
        model = next(model.modules())  # in model runner V1, what vLLM wraps for CUDA graphs
        if type(model).__call__ is not torch.nn.Module.__call__:
            raise UnsupportedConfigurationError(
                f"vLLM compiles all of {type(model).__name__}, which cannot read another "
                "tokenizer's tokens then; needs a drafter whose layers alone are compiled"
            )
        if self._reads is None:
            model.register_forward_pre_hook(self._in_own_tokens, with_kwargs=True)
            scheduler: Any = self.vllm_config.scheduler_config  # type: ignore[attr-defined]
            most = scheduler.max_num_batched_tokens + scheduler.max_num_seqs  # one more for each
            self._read = torch.empty(most, dtype=torch.int32, device=reads.device)
        self._reads = reads.int().clamp(min=0)
        self.use_heterogeneous_vocab = False  # V1's, which would map them, too

    def _in_own_tokens(self, model: Any, args: Any, named: dict[str, Any]) -> Any:
        if self._reads is None or args or named.get("input_ids") is None:
            raise UnsupportedConfigurationError(
                "a drafter with another tokenizer reads token ids, and vLLM gives it none; serve "
                "a model of text alone, or leave use_heterogeneous_vocab out"
            )
        given = named["input_ids"]
        read = torch.index_select(self._reads, 0, given, out=self._read[: len(given)])
        return args, named | {"input_ids": read}

    def _head_of_dynamic_tokens(self, shard: HeadShard) -> TokenHead:
        lifted, size = self.drafter.lifted, self.drafter.affinity.target_size
        if lifted is not None:
            head: Any = getattr(self._target, "lm_head", None)
            if getattr(head, "weight", None) is None or head.org_vocab_size < size:
                raise UnsupportedConfigurationError(
                    "the drafter's dynamic tokens take their logits "
                    f"from the target's head, and {type(self._target).__name__} has no lm_head "
                    f"with {size} rows; calibrate with --dynamic 0"
                )
            shard = HeadShard(head)
        return shard.logits(lambda own: get_tp_group().all_reduce(own), lifted)

    def score(
        self, hidden: Tensor, contexts: Callable[[], KeptContexts]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Score the next token, and the dynamic tokens if there are any.

        Args:
            hidden: `[B, d]`, the drafter's last hidden states.
            contexts: says where the last tokens of each request are. Called only where a source of
                dynamic tokens reads them.

        Returns:
            `[B, V_d]`; and `[B, C]` int32 with `[B, C]`, or None twice.
        """
        self.compare("hidden states", hidden)
        drafter = self.drafter
        if self._states is not None:
            hidden = self._states(hidden)
        columns, bias = self._columns, drafter.bias
        logits = hidden.mm(columns) if bias is None else torch.addmm(bias, hidden, columns)
        logits = self._processed(logits)
        if drafter.dynamic_tokens is None:
            return logits, None, None
        source = drafter.dynamic_tokens
        tokens, gathered = dynamic_columns(source, self._full_head, contexts(), hidden)
        return logits, tokens, self._processed(gathered.to(logits))

    def compare(self, what: str, own: Tensor) -> None:
        """Refuse ranks that differ in `own`, `[B, ...]`, if the options say so."""
        if options(self.vllm_config).compare_ranks:  # type: ignore[attr-defined]
            compare_ranks(what, own, _all_gather)

    def _processed(self, logits: Tensor) -> Tensor:
        soft_cap, scale = self._scale
        if soft_cap is not None:
            logits = torch.tanh(logits / soft_cap) * soft_cap
        return logits if scale == 1.0 else logits * scale


def _found(model: Any, name: str) -> Any:
    """A model's part, or that of what it wraps, or of its first layer; None if there is none."""
    inner = getattr(model, "model", None)
    layers = getattr(inner, "layers", ())
    first = list(layers.values() if hasattr(layers, "values") else layers)[:1]
    found = (getattr(each, name, None) for each in (model, inner, *first))
    return next((each for each in found if each is not None), None)


def _all_gather(own: Tensor) -> Tensor:
    gathered: Tensor = get_tp_group().all_gather(own, 0)
    return gathered


def _moved(drafter: PrunedDrafter, like: Tensor) -> PrunedDrafter:
    own = drafter.in_dtype(like.dtype)
    return replace(
        own,
        affinity=own.affinity.to(like.device),
        weight=own.weight.to(like.device),
        bias=None if own.bias is None else own.bias.to(like.device),
    )
