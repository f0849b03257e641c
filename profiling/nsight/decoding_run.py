"""`python -m profiling.nsight.decoding_run`: a decoder at work, for a profiler to look at.

The demo's pair with virtual and dynamic tokens, calibrated in a few seconds: what is profiled is
where time goes, not how much is accepted. On a GPU the CUDA profiler is started after the warm-up
and stopped at the end, so that `nsys profile --capture-range=cudaProfilerApi` records decoding
alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from examples.demo.corpus import held_out_files, read_text, training_files
from examples.demo.shipped import load_shipped
from rdk_cuda import Vocabulary
from rdk_cuda.calibration import Material, Options, successor_counts
from rdk_cuda.cli.arguments import natural, share
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Generation
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.recipes.inputs.documents import cut_windows
from rdk_cuda.recipes.inputs.loading import quiet
from rdk_cuda.recipes.inputs.pairs import read_models
from rdk_cuda.recipes.record import record
from rdk_cuda.recipes.stages.pruning import Pruning

from ..commands import Parser, refuse_device, run_command

WINDOW = 384
CALIBRATION_POSITIONS = WINDOW
PROMPT_TOKENS = 64
TEMPERATURE = 0.7
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class DecodingRun:
    """A decoder and its prompts."""

    decoder: SpeculativeDecoder
    prompts: Sequence[Sequence[int]]
    tokens: int

    def decode(self, tokens: int | None = None) -> Generation:
        """Continue all prompts; the same tokens every time."""
        seeds = list(range(len(self.prompts)))
        return self.decoder.generate(
            self.prompts,
            max_new_tokens=self.tokens if tokens is None else tokens,
            temperature=TEMPERATURE,
            seeds=seeds,
        )


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `prepare`."""
    add = command.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--batch", type=natural, default=4, metavar="B", help="sequences (%(default)s)")
    add("--threads", type=natural, metavar="N", help="on the CPU (torch's own number)")
    add("--tokens", type=natural, default=64, metavar="N", help="of each (%(default)s)")
    add("--draft-length", type=natural, default=4, metavar="K", help="(%(default)s)")
    add("--keep", type=share, default=0.25, help="of the vocabulary (%(default)s)")


def prepare(options: argparse.Namespace) -> DecodingRun:
    """Load, calibrate, and decode a little."""
    refuse_device(options)
    quiet()
    if options.threads:
        torch.set_num_threads(options.threads)
    models = load_shipped()  # calibrated on the CPU
    calibration, held_out = (
        encoded(models.tokenizer, files[: 2 * max(4, options.batch)])
        for files in (training_files(), held_out_files())
    )
    recording = record(
        read_models(models.target, models.drafter),
        cut_windows(calibration, CALIBRATION_POSITIONS, WINDOW),
        temperatures=(TEMPERATURE,),
    )
    mean_probs = recording.mean_probs_at(TEMPERATURE)
    vocabulary = Vocabulary.most_likely(
        mean_probs, max(1, round(options.keep * mean_probs.numel()))
    )
    material = Material(recording, models.drafter_head, successor_counts(calibration, recording))
    drafter = Pruning(material, vocabulary, Options()).virtual(TEMPERATURE, dynamic=True)
    for model in (models.target, models.drafter):
        model.to(options.device)
    decoder = SpeculativeDecoder(
        HuggingFaceModel(models.target),
        HuggingFaceModel(models.drafter, head=drafter.weight, head_bias=drafter.bias),
        drafter.affinity,
        draft_length=options.draft_length,
        vocabulary=vocabulary,
        dynamic_tokens=drafter.dynamic_tokens,
    )
    long = [ids[:PROMPT_TOKENS] for ids in held_out if len(ids) >= PROMPT_TOKENS]
    prompts = [long[place % len(long)] for place in range(options.batch)]
    run = DecodingRun(decoder, prompts, options.tokens)
    run.decode(WARM_UP_TOKENS)
    return run


def encoded(tokenizer: Any, files: Iterable[Path]) -> list[list[int]]:
    """Token ids of files."""
    ids: list[list[int]] = tokenizer([read_text(file) for file in files], verbose=False)[
        "input_ids"
    ]
    return ids


@contextmanager
def captured(device: str, name: str = "decoding") -> Iterator[None]:
    """What nsys and ncu record, in an NVTX range; they wait for the CUDA profiler's start."""
    if device != "cuda":
        yield
        return
    torch.cuda.synchronize()
    with torch.cuda.nvtx.range(name), torch.cuda.profiler.profile():
        yield
        torch.cuda.synchronize()


def run(options: argparse.Namespace) -> None:
    """Decode once, captured."""
    prepared = prepare(options)
    with captured(options.device):
        tokens, statistics, _ = prepared.decode()
    print(
        f"{sum(map(len, tokens))} tokens in {statistics.target_passes} passes of the target, "
        f"{statistics.mean_accepted_length:.2f} drafts accepted of each"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.nsight.decoding_run", description=__doc__)
    add_arguments(command)
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
