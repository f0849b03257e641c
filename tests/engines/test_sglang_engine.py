"""SGLang itself with the plugin: `make test-sglang` where it is installed and there is a GPU.

These tests have not run yet. Each is skipped by name where SGLang or a GPU is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from .exact import assert_joint, prompts_of
from .pair import TARGET

NO_SGLANG = find_spec("sglang") is None
pytestmark = [
    pytest.mark.skipif(NO_SGLANG, reason="SGLang is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

DRAFTS, TOKENS, SAMPLES = 4, 64, 2048


class Engine:
    """SGLang with the demo's target in float32; `drafter` as `--speculative-token-map` has it."""

    def __init__(self, drafter: Path | None = None, model: Path | None = None) -> None:
        import sglang

        options: dict[str, Any] = {}
        if model is not None:
            options = {
                "speculative_algorithm": "STANDALONE",
                "speculative_draft_model_path": str(model),
                "speculative_token_map": str(drafter),
                "speculative_eagle_topk": 1,
                "speculative_num_steps": DRAFTS,
                "speculative_num_draft_tokens": DRAFTS + 1,
            }
        self.engine = sglang.Engine(
            model_path=str(TARGET),
            dtype="float32",
            context_length=512,
            max_running_requests=64,
            attention_backend="triton",  # which takes float32
            enable_deterministic_inference=True,
            log_level="error",
            **options,
        )

    def tokens(
        self, prompts: Sequence[Sequence[int]], params: dict[str, Any] | list[dict[str, Any]]
    ) -> list[list[int]]:
        """The completion of each prompt."""
        given = [list(prompt) for prompt in prompts]
        outputs = self.engine.generate(input_ids=given, sampling_params=params)
        return [list(output["output_ids"]) for output in outputs]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What SGLang says without speculation, greedily."""
    engine = Engine()
    said = engine.tokens(prompts_of(20), {"temperature": 0, "max_new_tokens": TOKENS})
    engine.engine.shutdown()
    return said


@pytest.fixture(scope="module", params=["pruned-6.25", "virtual-6.25", "virtual-25"])
def engine(
    plain: list[list[int]], drafters: Path, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    served = Engine(drafters / request.param, drafters / "model")
    yield served
    served.engine.shutdown()


def test_greedy_text_is_that_of_plain_sglang(engine: Engine, plain: list[list[int]]) -> None:
    said = engine.tokens(prompts_of(20), {"temperature": 0, "max_new_tokens": TOKENS})
    assert said == plain


@pytest.mark.parametrize(
    "setting", [{"temperature": 0.7}, {"temperature": 1.0, "top_p": 0.9, "min_p": 0.1}]
)
def test_drawn_tokens_have_the_targets_distribution(
    engine: Engine, setting: dict[str, float]
) -> None:
    prompt = prompts_of(20)[3]
    params = [
        {"max_new_tokens": 3, "ignore_eos": True, "sampling_seed": seed, **setting}
        for seed in range(SAMPLES)
    ]
    tokens = engine.tokens([prompt] * SAMPLES, params)
    assert_joint(tokens, prompt, **setting, control=1.4)


def test_a_seed_gives_the_same_text_alone_and_among_others(engine: Engine) -> None:
    prompts = prompts_of(17)
    params = [
        {"temperature": 1.0, "max_new_tokens": TOKENS, "sampling_seed": seed} for seed in range(17)
    ]
    together = engine.tokens(prompts, params)
    assert engine.tokens(prompts[:1], params[:1]) == together[:1]
    assert engine.tokens(prompts[:1], params[1:2]) != together[:1]
