"""Peers that other packages bring, where they are installed; each adapter is a few lines.

Their signatures are those of the sources that were read:

- FlashInfer 0.6.18, github.com/flashinfer-ai/flashinfer at fb28d72, flashinfer/sampling.py.
- vLLM, github.com/vllm-project/vllm at 7f6fc1c, vllm/v1/sample/rejection_sampler.py. Later versions
  take the target's logits in place of its probabilities, and the parameter's name says which. Its
  V2 model runner's sampler: vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py at 02e318b.
- SGLang, github.com/sgl-project/sglang: sgl-kernel/python/sgl_kernel/speculative.py at 6bfad8f; the
  chain sampler python/sglang/srt/speculative/reject_sampling.py at 0c23aa8, which later versions
  have in sglang/kernels/ops/speculative.
- Transformers 5.23.0, transformers/generation/utils.py.
- CuPy 14.2.0, cupyx/scipy/sparse, whose product with a dense matrix is cuSPARSE's SpMM.

What they sample is not taken on trust: `python -m profiling.peers` tests every one of them first.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rdk_cuda import Affinity

from .samplers import (
    TARGET_ONLY,
    TORCH_PEERS,
    Decided,
    Link,
    Peer,
    Sampler,
    full_width,
    gathered,
    gathered_probs,
)


def known_peers() -> dict[str, Peer]:
    """All peers by name, ours first."""
    return {peer.name: peer for peer in (*TORCH_PEERS, *INSTALLED_PEERS)}


def needs(module: str, *, gpu: bool = True) -> Callable[[torch.device, str], str | None]:
    """Why a peer is missing, for `Peer.missing`."""

    def missing(device: torch.device, sampler: str) -> str | None:
        if gpu and device.type != "cuda":
            return "needs a GPU"
        return None if find_spec(module) else f"{module} is not installed"

    return missing


def log_gathered(affinity: Affinity) -> Link:
    """`gathered` with log q in place of q, for peers that take logits over one vocabulary."""
    link = gathered(affinity)

    def logarithm(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        tokens, q = link(logits, temperature)
        return tokens, q.log()

    return logarithm


def flashinfer(affinity: Affinity) -> Sampler:
    """Its softmax, its sampling from q, and its chain verification."""
    sampling: Any = importlib.import_module("flashinfer.sampling")
    spread, bias = gathered_probs(affinity), affinity.bias

    def link(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        # Its softmax divides by the temperature first, the bias comes after that here.
        biased = logits.float() + temperature[:, None] * bias
        q = spread(sampling.softmax(biased, temperature=temperature))
        return sampling.sampling_from_probs(q).long(), q

    def judge(target_logits: Tensor, q: Tensor, tokens: Tensor, temperature: Tensor) -> Decided:
        rows = target_logits.float().flatten(0, 1)
        repeated = temperature.repeat_interleave(target_logits.shape[1])
        p = sampling.softmax(rows, temperature=repeated).view(target_logits.shape)
        output, _, emitted = sampling.chain_speculative_sampling(q, tokens.int(), p)
        return output.long(), emitted

    return full_width(link, judge)


def vllm(affinity: Affinity) -> Sampler:
    """The Triton kernels of its V1 rejection sampler; the bonus token is drawn outside of them."""
    module: Any = importlib.import_module("vllm.v1.sample.rejection_sampler")
    takes_logits = "target_logits" in inspect.signature(module.rejection_sample).parameters

    def judge(target_logits: Tensor, q: Tensor, tokens: Tensor, temperature: Tensor) -> Decided:
        batch, length = tokens.shape
        z = target_logits.float() / temperature[:, None, None]
        bonus = torch.multinomial(torch.softmax(z[:, length], 1), 1)
        drafted = z[:, :length].flatten(0, 1)
        offsets = torch.arange(1, batch + 1, dtype=torch.int32, device=q.device) * length
        # Of the metadata it reads these alone.
        metadata = SimpleNamespace(
            all_greedy=False, all_random=True, temperature=temperature, generators={}
        )
        output = module.rejection_sample(
            tokens.int().flatten(),
            [length] * batch,
            length,
            offsets,
            q.flatten(0, 1),
            drafted if takes_logits else torch.softmax(drafted, 1),
            bonus.int(),
            metadata,
        ).long()
        return output, (output >= 0).sum(1) - 1

    return full_width(gathered(affinity), judge)


def vllm_v2(affinity: Affinity) -> Sampler:
    """The Triton kernels of its V2 model runner, which take logits of both.

    0.33.0 divides the drafter's by the temperature, and the target's not. Both are scaled already.
    """
    module: Any = importlib.import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils")

    def judge(target_logits: Tensor, log_q: Tensor, tokens: Tensor, temperature: Tensor) -> Decided:
        batch, length = tokens.shape
        slots, device = length + 1, tokens.device
        z = target_logits.float() / temperature[:, None, None]
        place = torch.arange(batch * slots, device=device)
        sequence, local = (place // slots).int(), (place % slots).int()
        sampled, count = module.rejection_sample(
            z.flatten(0, 1),
            log_q,
            torch.nn.functional.pad(tokens, (1, 0)).flatten(),  # the token before them is decided
            torch.arange(batch + 1, dtype=torch.int32, device=device) * slots,
            local.long(),  # positions: the seeds are new ones in each call
            torch.arange(batch, dtype=torch.int32, device=device),
            sequence,
            local,
            torch.ones_like(temperature),
            torch.randint(2**62, (batch,), device=device),
            length,
        )
        past_end = torch.arange(slots, device=device) >= count[:, None]
        return sampled.masked_fill(past_end, -1), count - 1

    return full_width(log_gathered(affinity), judge)


def sglang(function: Callable[..., object], *, reads_q: bool) -> Callable[..., Decided]:
    """Verification by an operator of SGLang, whose tree of tokens is a chain here.

    Those that verify with the target alone take a draft distribution of zeros.
    """

    def judge(target_logits: Tensor, q: Tensor, tokens: Tensor, temperature: Tensor) -> Decided:
        batch, length = tokens.shape
        slots = length + 1
        p = torch.softmax(target_logits.float() / temperature[:, None, None], 2)
        place = torch.arange(batch * slots, device=q.device).view(batch, slots)
        next_token = (place % slots + 1).masked_fill(place % slots == length, -1)
        output = torch.full((batch * slots,), -1, dtype=torch.int32, device=q.device)
        accepted_at = torch.full((batch, slots), -1, dtype=torch.int32, device=q.device)
        num_accepted = torch.zeros(batch, dtype=torch.int32, device=q.device)
        function(
            predicts=output,
            accept_index=accepted_at,
            accept_token_num=num_accepted,
            candidates=torch.nn.functional.pad(tokens, (1, 0)),  # the root is decided already
            retrive_index=place,
            retrive_next_token=next_token,
            retrive_next_sibling=torch.full_like(place, -1),
            uniform_samples=torch.rand(batch, slots, device=q.device),
            uniform_samples_for_final_sampling=torch.rand(batch, device=q.device),
            target_probs=p,
            draft_probs=q if reads_q else torch.zeros_like(p),
            threshold_single=1.0,
            threshold_acc=1.0,
            deterministic=True,
        )
        return output.view(batch, slots).long(), num_accepted

    return judge


def sglang_chain(affinity: Affinity) -> Sampler:
    """The Triton kernel that compares q with p."""
    try:
        module: Any = importlib.import_module("sglang.kernels.ops.speculative.reject_sampling")
    except ModuleNotFoundError:
        module = importlib.import_module("sglang.srt.speculative.reject_sampling")
    function = module.chain_speculative_sampling_triton
    return full_width(gathered(affinity), sglang(function, reads_q=True))


def sglang_target_only(affinity: Affinity) -> Sampler:
    """The CUDA kernel of sgl_kernel, which accepts x with probability p(x), whatever q is."""
    module: Any = importlib.import_module("sgl_kernel")
    function = module.tree_speculative_sampling_target_only
    return full_width(gathered(affinity), sglang(function, reads_q=False))


def cupy(affinity: Affinity) -> Sampler:
    """Redistribution as a product with CuPy's matrix, in torch's memory and on its stream."""
    library: Any = importlib.import_module("cupy")
    sparse: Any = importlib.import_module("cupyx.scipy.sparse")
    library.cuda.runtime.getDeviceCount()  # raises here where the driver is too old for it
    parts = (affinity.col_weights, affinity.col_drafts, affinity.col_offsets)
    matrix = sparse.csr_matrix(
        tuple(library.from_dlpack(part) for part in parts),
        shape=(affinity.target_size, affinity.draft_size),
    )
    memory = library.cuda.PythonFunctionAllocator(
        lambda size, device: torch.cuda.caching_allocator_alloc(size, device),
        lambda pointer, device: torch.cuda.caching_allocator_delete(pointer),
    )

    def link(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        probs = torch.softmax(logits.float() / temperature[:, None] + affinity.bias, 1)
        stream = library.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream, library.cuda.using_allocator(memory.malloc):
            # Transposed on both sides, rows of q lie one after the other and nothing is copied.
            q = from_dlpack((matrix @ library.from_dlpack(probs).T).T).contiguous()
        return torch.multinomial(q, 1).squeeze(1), q

    return full_width(link)


def transformers(affinity: Affinity) -> Sampler:
    """Its `_speculative_sampling`, which takes one sequence: a loop over the batch.

    It takes logits of both models over one vocabulary.
    """
    module: Any = importlib.import_module("transformers.generation.utils")

    def judge(target_logits: Tensor, log_q: Tensor, tokens: Tensor, heat: Tensor) -> Decided:
        batch, length = tokens.shape
        output, accepted = torch.full_like(target_logits[:, :, 0], -1, dtype=torch.int64), []
        z = target_logits.float() / heat[:, None, None]
        for b in range(batch):
            one = slice(b, b + 1)
            decided, matches = module._speculative_sampling(
                candidate_input_ids=tokens[one],
                candidate_logits=log_q[one],
                candidate_length=length,
                new_logits=z[one],
            )
            output[b, : decided.shape[1]] = decided[0]
            accepted.append(matches)
        return output, torch.stack(accepted)

    return full_width(log_gathered(affinity), judge)


INSTALLED_PEERS = (
    Peer("flashinfer", flashinfer, needs("flashinfer"), "flashinfer"),
    Peer("vllm", vllm, needs("vllm"), "vllm"),
    Peer("vllm-v2", vllm_v2, needs("vllm"), "vllm"),
    Peer("sglang-chain", sglang_chain, needs("sglang"), "sglang"),
    Peer("sglang-target-only", sglang_target_only, needs("sgl_kernel"), "sgl_kernel", TARGET_ONLY),
    Peer("cupy", cupy, needs("cupyx"), "cupy"),
    Peer("transformers", transformers, needs("transformers", gpu=False), "transformers"),
)
