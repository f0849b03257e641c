"""Two checks on real text: greedy output is the target's, and samples have its distribution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity

from .chi_square import chi_square
from .shipped import Models
from .text import Prompt

# The last digits of a sum depend on the shape of the batch. Where the target's logits of two tokens
# are as near as this, either is the greedy one. Gemma's largest logits lie between 16 and 32, where
# bfloat16 has steps of 1/8.
TIES = {torch.float32: 1e-4, torch.bfloat16: 0.5}

DRAWS = 25_000
FALSE_ALARM = 1e-4
LEAST_DISTANCE = 0.01  # total variation; a drafter nearer to the target needs no verification


@dataclass(frozen=True)
class Check:
    """What was checked, whether it held, and its figures."""

    name: str
    passed: bool
    detail: str
    figures: Mapping[str, float]


@torch.no_grad()
def greedy_outputs(models: Models, prompts: Sequence[Prompt], tokens: int) -> list[list[int]]:
    """The target's own greedy `generate`, past end tokens, for prompts of one length."""
    ids = torch.tensor([prompt.ids for prompt in prompts], dtype=torch.int64, device="cpu")
    generated = models.pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=None,
    )
    outputs: list[list[int]] = generated[:, ids.shape[1] :].tolist()
    return outputs


def check_greedy(
    models: Models,
    prompts: Sequence[Prompt],
    expected: Sequence[Sequence[int]],
    decoded: Mapping[str, Sequence[Sequence[int]]],
) -> Check:
    """Compare the greedy outputs of decoders with the target's own, token for token."""
    ties, wrong = 0, []
    for name, outputs in decoded.items():
        for prompt, output, right in zip(prompts, outputs, expected, strict=True):
            if list(output) == list(right):
                continue
            if part_at_a_tie(models, prompt, output, right):
                ties += 1
            else:
                wrong.append(f"{prompt.source} with {name}")
    count = len(prompts) * len(decoded)
    tokens = sum(map(len, expected)) * len(decoded)
    detail = (
        f"{count - ties - len(wrong)} of {count} outputs, {tokens} tokens, are those of the "
        "target's own generate"
    )
    if ties:
        near = TIES[models.pair.target.dtype]
        detail += f"; {ties} part where two logits of the target are within {near:g}"
    if wrong:
        detail += f"; {len(wrong)} are not, first {wrong[0]}"
    figures = {"outputs": count, "tokens": tokens, "ties": ties, "different": len(wrong)}
    return Check("greedy output", not wrong, detail, figures)


@torch.no_grad()
def part_at_a_tie(
    models: Models, prompt: Prompt, output: Sequence[int], right: Sequence[int]
) -> bool:
    """Whether the target's logits of the first two different tokens are nearly equal."""
    pairs = enumerate(zip(output, right, strict=False))
    place = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
    if place is None:
        return False
    ids = torch.tensor([[*prompt.ids, *right[:place]]], dtype=torch.int64, device="cpu")
    logits = models.pair.target(ids).logits[0, -1].float()
    near = TIES[models.pair.target.dtype]
    return bool((logits[output[place]] - logits[right[place]]).abs() <= near)


def check_lossless(
    target_logits: Tensor,
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: float,
    seed: int,
    **dynamic: Tensor,
) -> Check:
    """Test many outputs of draft and verify at one position against the target's distribution.

    The control is the same test on the drafts before verification. It has to reject them.

    Args:
        target_logits: `[V_t]`. draft_logits: `[V_d]`.
        dynamic: `dynamic_tokens` and `dynamic_logits`, both `[C]`, if the draft has them.
    """
    draft_probs = rdk_cuda.redistribute(draft_logits, affinity, temperature, **dynamic)
    drafted, output = draw_outputs(
        target_logits, draft_logits, affinity, temperature, seed, **dynamic
    )
    probs = (target_logits.double() / temperature).softmax(-1)
    test, control = chi_square(output, probs), chi_square(drafted, probs)
    distance = 1 - float(torch.minimum(probs, draft_probs).sum())
    needs_control = distance >= LEAST_DISTANCE
    passed = test.probability >= FALSE_ALARM
    if needs_control:
        passed = passed and control.probability < FALSE_ALARM
    unverified = control.chance if needs_control else "none, they are as good"
    detail = (
        f"{DRAWS} draws against the exact distribution: chi-square {test.statistic:.0f} on "
        f"{test.degrees} degrees, {test.chance}; control, the drafts unverified: {unverified}; "
        f"limit {FALSE_ALARM:g}, so 1 in {1 / FALSE_ALARM:.0f} right samplers would fail"
    )
    figures = {
        "draws": DRAWS,
        "statistic": test.statistic,
        "degrees": test.degrees,
        "probability": test.probability,
        "control_statistic": control.statistic,
        "control_probability": control.probability,
        "false_alarm": FALSE_ALARM,
        "distance": distance,
    }
    return Check("sampled output", passed, detail, figures)


def draw_outputs(
    target_logits: Tensor,
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: float,
    seed: int,
    **dynamic: Tensor,
) -> tuple[Tensor, Tensor]:
    """`DRAWS` independent (draft, output) tokens of one position, without a model call for each.

    Every draw is a sequence of its own to the operators; all of them read one row of logits.
    """
    seeds = torch.arange(DRAWS, device="cpu") + (seed << 32)
    each: dict[str, Any] = {name: columns.expand(DRAWS, -1) for name, columns in dynamic.items()}
    draft = rdk_cuda.draft(
        draft_logits.expand(DRAWS, -1), affinity, temperature, seeds=seeds, positions=0, **each
    )
    tokens, _, _ = torch.ops.rdk.verify(
        target_logits.expand(2 * DRAWS, -1),
        draft_logits[None],
        None if draft.stats is None else draft.stats[0, :1],
        torch.zeros(DRAWS, dtype=torch.int32, device="cpu"),
        draft.tokens[:, 0],
        torch.arange(DRAWS + 1, dtype=torch.int32, device="cpu"),
        torch.full((DRAWS,), temperature, dtype=torch.float32, device="cpu"),
        draft.temperature,
        draft.step_keys,
        draft.positions,
        *affinity.by_target,
        1,
        **{name: columns[None] for name, columns in dynamic.items()},
    )
    return draft.tokens[:, 0], tokens[:, 0]
