"""Evidence from a real vLLM, as one JSON file.

    python -m tests.engines --drafters DIRECTORY --out FILE [--prompts N] [--samples N]

For every drafter: whether the greedy text is that of plain vLLM, how many drafts of a step are
accepted, there and in this package's own decoder, and how much is kept of a draft for its
verification. Then the joint distribution of the first three tokens after one prompt, with controls:
the same samples against another temperature's distribution, and samples of vLLM's own speculation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams

from profiling.machine import describe
from rdk_cuda.files import write_json

from .drafters import KINDS, SHARES, calibrated_drafters
from .engine import DRAFTS, VERSION, WORKER, Engine, speculation
from .exact import Joint, prompts_of, two_sample_p_value
from .jobs import with_grammar
from .our_decoder import accepted_per_step, our_decoder
from .pair import EAGLE3

SETTINGS: dict[str, dict[str, float]] = {
    "T = 0.7": {"temperature": 0.7},
    "T = 1": {"temperature": 1.0},
    "T = 1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "T = 1, min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
}
TOKENS = 64
# Of sampled text. The last step's drafts, which the decoder cuts and vLLM does not, are few then.
LONG = 256
GROUPS = 10  # of four prompts, whose means have the interval
T_97_5 = 2.262  # Student's t with GROUPS - 1 degrees
OF_THE_MODEL = ("full", *(f"{kind}-{share}" for share in SHARES for kind in KINDS))
OF_EAGLE3 = ("eagle3", "virtual-eagle3", "virtual-dynamic-eagle3")


def greedy(engine: Engine, drafter: Path | None, name: str, plain: Any, prompts: Any) -> Any:
    """A row of one drafter; `plain` is the text that it should have."""
    engine.use(drafter)
    said, accepted = engine.drafted(prompts, SamplingParams(temperature=0, max_tokens=TOKENS))
    return {
        "drafter": name,
        "prompts": len(prompts),
        "equal": sum(a == b for a, b in zip(said, plain, strict=True)),
        "accepted_per_step": round(accepted, 4),
    }


def measured(
    engine: Engine, model: Path, names: tuple[str, ...], directory: Path, plain: Any, prompts: Any
) -> Iterator[dict[str, Any]]:
    """One row for each drafter; `plain` is the greedy text that it should have."""
    for name in names:
        own = None if name in ("full", "eagle3") else directory / name
        row = greedy(engine, own, name, plain, prompts)
        decoder = our_decoder(model, own, DRAFTS)
        there, here = [], []
        for group in range(GROUPS):
            some = prompts[4 * group :][:4]
            seeds = [1000 * group + i for i in range(len(some))]
            params = [
                SamplingParams(temperature=1.0, max_tokens=LONG, seed=s, ignore_eos=True)
                for s in seeds
            ]
            there.append(engine.drafted(some, params)[1])
            here.append(accepted_per_step(decoder, some, LONG, 1.0, seeds))
        less = [a - b for a, b in zip(there, here, strict=True)]
        half = T_97_5 * statistics.stdev(less) / GROUPS**0.5
        arena = engine.proposer.arena
        kept = arena.rows.memory
        row |= {
            "accepted_per_step_at_temperature_1": round(statistics.mean(there), 4),
            "of_our_decoder": round(statistics.mean(here), 4),
            "less_that": [round(statistics.mean(less) + side * half, 4) for side in (-1, 1)],
            "draft_state_bytes_per_position": sum(
                rows[0, 0].nbytes for rows in kept if rows is not None
            ),
        }
        print(row, flush=True)
        yield row


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
    parser.add_argument("--samples", type=int, default=33334)
    arguments = parser.parse_args()
    begun = time.monotonic()
    directory = calibrated_drafters(arguments.drafters)
    prompts = prompts_of(arguments.prompts)
    found: dict[str, Any] = {
        "format": "rdk_cuda.vllm",
        **describe(torch.device("cpu")),
        "vllm": VERSION,
        "models": "the demo's, in float32",
        "drafts_per_step": DRAFTS,
        "tokens_per_prompt": TOKENS,
    }

    def write(**parts: Any) -> None:
        found.update(parts, seconds=round(time.monotonic() - begun, 1))
        write_json(found, arguments.out)

    engine = Engine()
    plain = engine.tokens(prompts, SamplingParams(temperature=0, max_tokens=TOKENS))
    many = [prompts[7]] * arguments.samples
    grammar = [engine.tokens(many, with_grammar(t)) for t in (1.0, 2.0)]
    engine.close()
    engine = Engine(
        worker=WORKER,
        drafter=directory / "virtual-eagle3",
        speculative_config=speculation(EAGLE3, method="eagle3"),
    )
    rows = list(measured(engine, EAGLE3, OF_EAGLE3, directory, plain, prompts))
    write(drafters=rows)
    engine.close()
    model = directory / "model"
    engine = Engine(model, WORKER, directory / "virtual-6.25")
    rows += measured(engine, model, OF_THE_MODEL, directory, plain, prompts)
    write(drafters=rows)
    engine.use(directory / "virtual-dynamic-6.25")
    masked = engine.tokens(many, with_grammar(1.0))
    write(
        drawn=drawn(engine, prompts[3], arguments.samples, seed=1000),
        drawn_with_a_grammar={
            "samples": arguments.samples,
            "p_value": two_sample_p_value(masked, grammar[0]),
            "p_value_of_the_control": two_sample_p_value(masked, grammar[1]),
        },
    )
    engine.close()
    theirs = speculation(directory / "model", draft_sample_method="probabilistic")
    engine = Engine(directory / "model", speculative_config=theirs)
    own = engine.tokens([prompts[3]] * 1024, SamplingParams(temperature=0.7, max_tokens=3))
    carried = engine.worker.model_runner._draft_probs
    engine.close()
    write(
        plain_vllm_with_its_own_speculation={
            "setting": "T = 0.7",
            "samples": len(own),
            "p_value": Joint(prompts[3], 3, temperature=0.7).p_value(own),
            "draft_state_bytes_per_position": carried.shape[-1] * carried.element_size(),
        }
    )
    print(found["plain_vllm_with_its_own_speculation"])


if __name__ == "__main__":
    main()
