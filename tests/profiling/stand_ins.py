"""Packages that are not installed here, as far as the adapters call them.

Each function takes what the original was read to take (profiling/peers/installed.py says where),
asserts what it asserts, and samples rightly in plain PyTorch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from profiling.bench import eager


def flashinfer() -> dict[str, ModuleType]:
    def softmax(logits: Tensor, temperature: Tensor | None = None) -> Tensor:
        assert logits.dim() == 2
        assert logits.dtype == torch.float32
        assert temperature is not None
        assert temperature.shape == logits.shape[:1]
        return torch.softmax(logits / temperature[:, None], 1)

    def sampling_from_probs(probs: Tensor) -> Tensor:
        assert probs.is_contiguous()
        return torch.multinomial(probs, 1).squeeze(1).int()

    def chain(q: Tensor, tokens: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert tokens.dtype == torch.int32
        assert q.is_contiguous()
        assert p.is_contiguous()
        output, emitted = judged(p, q, tokens)
        # The second result counts tokens that would be accepted alone: not what a step yields.
        return output.int(), torch.full_like(emitted, 99), emitted.int()

    return modules(
        "flashinfer.sampling",
        softmax=softmax,
        sampling_from_probs=sampling_from_probs,
        chain_speculative_sampling=chain,
    )


def vllm(*, takes_logits: bool) -> dict[str, ModuleType]:
    def sample(
        draft_token_ids: Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Tensor,
        draft_probs: Tensor,
        target: Tensor,
        bonus_token_ids: Tensor,
        metadata: Any,
    ) -> Tensor:
        batch, length = len(num_draft_tokens), max_spec_len
        for tensor in (draft_token_ids, draft_probs, target, bonus_token_ids):
            assert tensor.is_contiguous()
        assert cu_num_draft_tokens.tolist() == [length * (b + 1) for b in range(batch)]
        assert draft_token_ids.shape == (batch * length,)
        assert target.shape == draft_probs.shape == (batch * length, target.shape[1])
        assert bonus_token_ids.shape == (batch, 1)
        assert not metadata.all_greedy
        assert metadata.all_random
        assert metadata.generators == {}
        p = torch.softmax(target, 1) if takes_logits else target
        p = p.unflatten(0, (batch, length))
        bonus = torch.nn.functional.one_hot(bonus_token_ids.long(), p.shape[2]).float()
        return judged(
            torch.cat([p, bonus], 1),
            draft_probs.unflatten(0, (batch, length)),
            draft_token_ids.view(batch, length),
        )[0].int()

    def with_probs(a, b, c, d, e, target_probs, f, sampling_metadata):  # type: ignore[no-untyped-def]
        return sample(a, b, c, d, e, target_probs, f, sampling_metadata)

    def with_logits(a, b, c, d, e, target_logits, f, sampling_metadata, synthetic_mode=False):  # type: ignore[no-untyped-def]
        return sample(a, b, c, d, e, target_logits, f, sampling_metadata)

    function = with_logits if takes_logits else with_probs
    return modules("vllm.v1.sample.rejection_sampler", rejection_sample=function)


def vllm_v2() -> dict[str, ModuleType]:
    def rejection_sample(
        target_logits: Tensor,
        draft_logits: Tensor,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        temperature: Tensor,
        seed: Tensor,
        num_speculative_steps: int,
    ) -> tuple[Tensor, Tensor]:
        batch, slots = len(cu_num_logits) - 1, num_speculative_steps + 1
        assert cu_num_logits.tolist() == [slots * b for b in range(batch + 1)]
        assert target_logits.shape[0] == draft_sampled.shape[0] == batch * slots
        assert draft_logits.shape == (batch, slots - 1, target_logits.shape[1])
        assert idx_mapping.tolist() == list(range(batch))
        assert expanded_idx_mapping.tolist() == [b for b in range(batch) for _ in range(slots)]
        assert expanded_local_pos.tolist() == pos.tolist() == list(range(slots)) * batch
        assert seed.dtype == torch.int64
        assert len(seed) == len(temperature) == batch
        assert len(set(seed.tolist())) == batch
        # Of the tokens that the target reads, the first is decided; logits are scaled already.
        tokens = draft_sampled.view(batch, slots)[:, 1:]
        p = torch.softmax(target_logits, 1).view(batch, slots, -1)
        sampled, accepted = judged(p, torch.softmax(draft_logits, 2), tokens)
        return sampled.where(sampled >= 0, 12345), (accepted + 1).int()  # garbage after the end

    name = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
    return modules(name, rejection_sample=rejection_sample)


def sglang_chain(name: str) -> dict[str, ModuleType]:
    def chain(*, target_probs: Tensor, draft_probs: Tensor, **others: Any) -> None:
        batch, slots = others["candidates"].shape
        assert draft_probs.shape == (batch, slots - 1, target_probs.shape[2])
        fill(others, *judged(target_probs, draft_probs, others["candidates"][:, 1:]))

    return modules(name, chain_speculative_sampling_triton=chain)


def sgl_kernel() -> dict[str, ModuleType]:
    def tree(*, target_probs: Tensor, draft_probs: Tensor, **others: Any) -> None:
        assert draft_probs.shape == target_probs.shape
        assert not draft_probs.any()
        assert others["threshold_single"] == others["threshold_acc"] == 1
        assert others["retrive_next_token"][0].tolist() == [1, 2, -1]
        assert (others["retrive_next_sibling"] == -1).all()
        tokens = others["candidates"][:, 1:]
        one_hot = torch.nn.functional.one_hot(tokens, target_probs.shape[2]).float()
        fill(others, *judged(target_probs, one_hot, tokens))

    return modules("sgl_kernel", tree_speculative_sampling_target_only=tree)


def cupy() -> dict[str, ModuleType]:
    class Matrix:
        def __init__(self, parts: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int]) -> None:
            weights, columns, offsets = parts
            self.matrix = torch.sparse_csr_tensor(
                offsets, columns, weights, shape, check_invariants=True
            )

        def __matmul__(self, dense: Tensor) -> Tensor:
            assert dense.dtype == torch.float32
            assert dense.T.is_contiguous(), "columns that lie one after the other, as SpMM reads"
            return (self.matrix @ dense).T.contiguous().T

    class Stream(AbstractContextManager[None]):
        def __init__(self, pointer: int) -> None:
            assert pointer == 7

        def __exit__(self, *_: object) -> None:
            pass

    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDeviceCount=lambda: 1),
        PythonFunctionAllocator=lambda malloc, free: SimpleNamespace(malloc=malloc),
        ExternalStream=Stream,
        using_allocator=lambda malloc: nullcontext(),
    )
    made = modules("cupy", cuda=cuda, from_dlpack=lambda tensor: tensor)
    return made | modules("cupyx.scipy.sparse", csr_matrix=Matrix)


def judged(p: Tensor, q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return eager.verify(p.log(), q, tokens.long(), torch.ones(len(p)))


def fill(outputs: dict[str, Any], tokens: Tensor, num_accepted: Tensor) -> None:
    batch, slots = tokens.shape
    assert outputs["retrive_index"].flatten().tolist() == list(range(batch * slots))
    for name in ("predicts", "accept_index", "accept_token_num"):
        assert outputs[name].dtype == torch.int32
    assert outputs["candidates"].dtype == torch.int64
    outputs["predicts"].copy_(tokens.flatten())
    outputs["accept_token_num"].copy_(num_accepted)


def modules(name: str, **attributes: Any) -> dict[str, ModuleType]:
    """The module and the packages around it, as they stand in `sys.modules`."""
    parts = name.split(".")
    made = {".".join(parts[:n]): ModuleType(parts[n - 1]) for n in range(1, len(parts) + 1)}
    for package in made.values():
        package.__path__ = []
    vars(made[name]).update(attributes)
    return made
