"""The target's logits left in the shards of tensor parallelism, where no request needs rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from vllm import envs
from vllm.distributed.parallel_state import get_tp_group

from .configuration import UnsupportedConfigurationError
from .requests import Requests
from .target_logits import needs_whole_rows


def left_on_shards(model: Any, requests: Requests) -> Callable[[Tensor], Any]:
    """Make `compute_logits` of a target in model runner V1, for `"verify_on_shards"`.

    Only the first call of a step computes what is sampled from. Others are of a prompt's logprobs.
    Where vLLM has wrapped the model for CUDA graphs, this is the wrapper's attribute, which vLLM
    asks first: graphs hold the forward pass alone, and logits are computed behind it.

    Args:
        model: vLLM's, which may leave its logits on the ranks that computed them.
        requests: of the step.

    Raises:
        UnsupportedConfigurationError: a model that always gathers them.
    """
    local = getattr(model, "compute_logits_local", None)
    if local is None:
        raise UnsupportedConfigurationError(
            "the target has no compute_logits_local, which "
            'verify_on_shards needs; leave "verify_on_shards" out'
        )
    whole = model.compute_logits

    def compute_logits(hidden_states: Tensor) -> Any:
        first, requests.may_shard = requests.may_shard, False
        sampling = requests.runner.input_batch.sampling_metadata
        wants_whole = envs.VLLM_COMPUTE_NANS_IN_LOGITS or not first
        if wants_whole or needs_whole_rows(sampling, requests.params()):
            return whole(hidden_states)
        requests.group = get_tp_group().device_group
        return local(hidden_states)

    return compute_logits
