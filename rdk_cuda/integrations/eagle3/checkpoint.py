"""EAGLE checkpoints as they are published, read without running anything that is in them.

Of EAGLE-3 two formats are in use, and both are read:

- SafeAILab/EAGLE and sgl-project/SpecForge: `config.json` of a Llama with `draft_vocab_size`, and
  weights `midlayer.*` (EAGLE: `eagle/model/cnets.py`).
- vllm-project/speculators: `config.json` with `speculators_model_type: eagle3` and the sizes of the
  layers under `transformer_layer_config`, weights `layers.0.*` (`speculators/models/eagle3`).

EAGLE and EAGLE-2 have one: `config.json` of a Llama, with `bias: false` if `fc` has none, and
weights `fc.*` and `layers.*` (EAGLE: `eagle/model/cnets1.py`, and `EaModel` of `ea_model.py`). The
head is the target's.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import FLOATS, write_json, write_whole
from ...vocabulary import Vocabulary
from ..huggingface.placement import weight_of
from ..token_maps import TokenMapError, d2t_tensors, from_d2t
from .config_json import FLAGS, configuration, read_fields, says_eagle3
from .network import Eagle3Config, Eagle3Network
from .weights import WEIGHTS, CheckpointError, read_tensors, tensor_names

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_FC = "fc.weight"
_META = "eagle_meta.pt"  # which NeMo writes beside a drafter that it trains
_ROUNDING = 0.01  # of a norm, more than bfloat16 loses
# Tensors of training, and tables that are computed: not the drafter's weights.
_NOT_WEIGHTS = (
    "d2t",
    "t2d",
    "rotary_emb.inv_freq",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
)


@dataclass(frozen=True)
class Eagle3Checkpoint:
    """The result of `read_checkpoint`.

    Attributes:
        network: in evaluation mode, in the target's dtype and on its device.
        vocabulary: which target token each row of its head stands for.
        dtype: of the weights in the files.
        shared: names of the weights that are the target's own, whether or not the files have them.
    """

    network: Eagle3Network
    vocabulary: Vocabulary
    dtype: torch.dtype = torch.float16
    shared: frozenset[str] = frozenset([_EMBEDDING])

    @property
    def head_shape(self) -> tuple[int, int]:
        """V_t and d, of a head with all of the target's tokens."""
        return self.vocabulary.target_size, self.network.config.layer.hidden_size

    def full_head(self, target: Any) -> Tensor | None:
        """`[V_t, d]`, a row for every target token in their order; None if there are not so many.

        There are where the head has all tokens, and where its rows are the target's own.
        """
        if _HEAD in self.shared:
            return weight_of(target.get_output_embeddings())
        own = self.network.lm_head.weight.detach()
        ids = self.vocabulary.draft_ids.to(own.device)
        if len(self.vocabulary.kept) < self.vocabulary.target_size:
            return None
        return torch.empty_like(own).index_copy_(0, ids, own)

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the checkpoint in EAGLE's format, without the weights that are the target's."""
        folder, config = Path(folder), self.network.config
        fields = json.loads(config.layer.to_json_string())
        if config.eagle2:
            fields |= {"architectures": ["LlamaForCausalLMEagle"], "bias": config.fc_bias}
        else:
            fields |= {
                "architectures": ["LlamaForCausalLMEagle3"],
                "draft_vocab_size": config.draft_size,
                "target_hidden_size": config.target_hidden_size,
                **{flag: True for flag in FLAGS if getattr(config, flag)},
            }
        if config.reads_last:
            fields["use_aux_hidden_state"] = False
        if config.state_layers is not None:
            fields["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(config.state_layers)}
        first = "layers.0." if config.eagle2 else "midlayer."
        tensors = {
            name.replace("layers.0.", first): tensor.cpu().to(self.dtype).contiguous()
            for name, tensor in self.network.state_dict().items()
            if name not in self.shared and not name.endswith(_NOT_WEIGHTS)
        }
        if self.vocabulary != Vocabulary.identity(self.vocabulary.target_size):
            tensors |= d2t_tensors(self.vocabulary)
        folder.mkdir(parents=True, exist_ok=True)
        from safetensors.torch import save_file

        write_whole(folder / WEIGHTS, partial(save_file, tensors))
        write_json(fields, folder / "config.json")


def is_checkpoint(path: str | PathLike[str]) -> bool:
    """Say whether a directory holds a drafter on a target's states, by its files' own names."""
    try:
        fields = read_fields(Path(path))
        return says_eagle3(fields) or _FC in tensor_names(Path(path))
    except (CheckpointError, OSError):
        return False


def read_checkpoint(path: str | PathLike[str], target: Any) -> Eagle3Checkpoint:
    """Read an EAGLE-3 drafter of EAGLE, SpecForge or speculators; EAGLE and EAGLE-2, too.

    Nothing is downloaded, and nothing that the files hold is run.

    Args:
        path: the directory with `config.json` and the weights, whole or in shards.
        target: the model that it drafts for, from `AutoModelForCausalLM`. Its embeddings are used
            where the checkpoint has none, and so are its rows of the head.

    Raises:
        CheckpointError: no such drafter, a feature that is not supported, or sizes that do not fit
            the target. Names the field or tensor.
        OSError: a file cannot be opened.
    """
    folder = Path(path)
    fields = read_fields(folder)
    tensors = read_tensors(folder)
    config = configuration(folder, fields, tensors, target)
    if "d2t" not in tensors and config.draft_size > (size := config.layer.vocab_size):
        config = replace(config, draft_size=size)  # its rows beyond are padding
        if _HEAD in tensors:
            tensors[_HEAD] = tensors[_HEAD][:size]
    vocabulary = vocabulary_of(folder, tensors, config)
    dtypes = {each.dtype for name, each in tensors.items() if not name.endswith(_NOT_WEIGHTS)}
    weights, shared = _weights(folder, config, tensors, vocabulary, target)
    network = Eagle3Network(config)
    network.load_state_dict(weights)
    embedding = target.get_input_embeddings().weight
    return Eagle3Checkpoint(
        network.to(embedding.device, embedding.dtype).eval(),
        vocabulary,
        dtypes.pop() if len(dtypes) == 1 else torch.float32,
        shared,
    )


def vocabulary_of(folder: Path, tensors: Mapping[str, Tensor], config: Any) -> Vocabulary:
    """Which target token each row of the head of such a `draft_size` stands for."""
    size = config.layer.vocab_size
    if "d2t" not in tensors:
        if config.draft_size != size:
            beside = [file for file in (folder / _META, folder.parent / _META) if file.is_file()]
            known = f"; {beside[0]} has them as selected_token_ids" if beside else ""
            raise CheckpointError(
                f"{folder}: draft_vocab_size is {config.draft_size} of {size} tokens, but there is "
                f"no d2t that says which{known}"
            )
        return Vocabulary.identity(size)
    try:
        vocabulary = from_d2t(tensors["d2t"], size, t2d=tensors.get("t2d"))
    except TokenMapError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    if len(vocabulary.draft_ids) != config.draft_size:
        raise CheckpointError(
            f"{folder}: d2t has {len(vocabulary.draft_ids)} tokens; needs draft_vocab_size = "
            f"{config.draft_size}"
        )
    return vocabulary


def shapes_of(folder: Path, kind: Any, config: Any) -> dict[str, torch.Size]:
    """Of the weights that a network of this kind has; none is allocated."""
    try:
        with torch.device("meta"):
            network = kind(config)
    except Exception as error:  # whatever Transformers and torch make of values that do not fit
        raise CheckpointError(
            f"{folder / 'config.json'}: no network can be made of its sizes and rope_parameters: "
            f"{error!r:.200}"
        ) from error
    return {name: weight.shape for name, weight in network.state_dict().items()}


def refuse_misfits(
    folder: Path, weights: Mapping[str, Tensor], wanted: Mapping[str, torch.Size]
) -> None:
    """Weights that are missing, have no place, or are of other shapes."""
    for name, tensor in weights.items():
        if name not in wanted:
            raise CheckpointError(f"{folder}: {name} has no place in a drafter of this config")
        if tensor.shape != wanted[name] or tensor.dtype not in FLOATS:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; needs "
                f"{list(wanted[name])}, of {', '.join(map(str, FLOATS))}"
            )
    if missing := sorted(wanted.keys() - weights.keys()):
        raise CheckpointError(f"{folder}: has no {' and no '.join(missing[:3])}")


def _weights(
    folder: Path,
    config: Eagle3Config,
    tensors: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    target: Any,
) -> tuple[dict[str, Tensor], frozenset[str]]:
    """The network's weights; the names of those that are the target's own."""
    head = weight_of(target.get_output_embeddings())
    own = {
        _EMBEDDING: target.get_input_embeddings().weight.detach(),
        _HEAD: head[vocabulary.draft_ids.to(head.device)],
    }
    weights = {
        **own,
        **{name: tensor for name, tensor in tensors.items() if not name.endswith(_NOT_WEIGHTS)},
    }
    refuse_misfits(folder, weights, shapes_of(folder, Eagle3Network, config))
    shared = {
        name for name, row in own.items() if torch.equal(row.to(weights[name]), weights[name])
    }
    ours, targets = (each[_EMBEDDING].float() for each in (weights, own))
    if ours.shape == targets.shape and _EMBEDDING not in shared:
        apart = float((ours.to(targets) - targets).norm() / targets.norm())
        if apart > _ROUNDING:
            warnings.warn(
                f"{folder}: its embeddings differ from the target's by {apart:.2g} of their norm; "
                "is it the target that the drafter was trained for?",
                stacklevel=3,
            )
    return weights, frozenset(shared)
