"""How long `calibrate` and `evaluate` take at the size of a real model, and in how much memory.

`python -m profiling.studies.calibration_scale --work DIR` makes a target of the size of
Llama 3.1 8B (V_t 128,256, d 4,096, but only the three layers whose states are read) and an EAGLE-3
drafter with 32,000 tokens at random, in bfloat16, and text of random words. It runs both commands
on them and prints seconds and peak memory of each stage. What is calibrated is worth nothing; what
it takes is what it takes with real models, but for the layers that are not there. DIR takes 6 GB
and is used again by the next run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rdk_cuda import Vocabulary
from rdk_cuda.__main__ import main as rdk_cuda
from rdk_cuda.cli.arguments import natural
from rdk_cuda.cli.calibration import run_calibration
from rdk_cuda.cli.progress import Item, Stages
from rdk_cuda.cli.request import Request
from rdk_cuda.files import write_json
from rdk_cuda.integrations.eagle3 import Eagle3Checkpoint, Eagle3Config, Eagle3Network

from ..commands import Parser, run_command
from ..machine import describe, now
from ..tables import table

LAYERS, WORDS = 3, 300
TEXTS = {"calibration": 40, "held-out": 8}  # documents

Row = dict[str, Any]


class TimedStages(Stages):
    """The stages of a command with what each took, up to the beginning of the next one."""

    def __init__(self, first: str) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.begin(first)

    def each(self, items: Sequence[Item], description: str) -> Iterator[Item]:
        """As of `Stages`."""
        self.end()
        self.begin(description.partition(": ")[2] or description)
        yield from super().each(items, description)

    def begin(self, name: str) -> None:
        """A stage of this name begins now; the peak is counted anew."""
        self.name, self.start = name, time.perf_counter()
        Path("/proc/self/clear_refs").write_text("5")  # see proc(5)

    def end(self) -> None:
        """The stage is over."""
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
        seconds = time.perf_counter() - self.start
        self.rows.append({"stage": self.name, "seconds": seconds, "peak_bytes": 1024 * int(peak)})


def make_models(work: Path, tokens: int, width: int, kept: int) -> None:
    """A target and a drafter on its states, with random weights, unless they are there."""
    if (work / "drafter").is_dir():
        return
    torch.manual_seed(1)
    heads = max(1, width // 128)
    sizes: Row = {
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": 7 * width // 2,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "dtype": "bfloat16",
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        target = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=LAYERS))
        vocabulary = Vocabulary.most_likely(likelihoods(tokens), kept)
        layer = LlamaConfig(**sizes, num_hidden_layers=1)
        network = Eagle3Network(Eagle3Config(layer, kept, width, (0, 1, 2)))
    finally:
        torch.set_default_dtype(before)
    network.embed_tokens.weight.data.copy_(target.get_input_embeddings().weight)
    target.save_pretrained(work / "target")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(tokens)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(work / "target")
    shared = frozenset(["embed_tokens.weight"])
    Eagle3Checkpoint(network, vocabulary, shared=shared).save_pretrained(work / "drafter")


def likelihoods(tokens: int) -> torch.Tensor:
    """`[tokens]`, by Zipf's law."""
    return (1 + torch.arange(tokens, dtype=torch.float32)).reciprocal()


def write_text(folder: Path, documents: int, tokens: int) -> tuple[Path, ...]:
    """Files of random words."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(documents)
    files = []
    for place in range(documents):
        ids = torch.multinomial(likelihoods(tokens), WORDS, replacement=True, generator=random)
        files.append(folder / f"{place}.txt")
        files[-1].write_text(" ".join(f"w{i}" for i in ids.tolist()), encoding="utf-8")
    return tuple(files)


def measure(options: argparse.Namespace) -> list[Row]:
    """Seconds and peak memory of every stage of both commands."""
    work: Path = options.work
    make_models(work, options.tokens, options.width, options.kept)
    texts = {name: write_text(work / name, n, options.tokens) for name, n in TEXTS.items()}
    output = work / "calibrated"
    shutil.rmtree(output, ignore_errors=True)
    stages = TimedStages("loading the models")
    request = Request(
        work / "target",
        work / "drafter",
        texts["calibration"],
        output,
        texts["held-out"],
        screen_bytes=options.screen_bytes,
        positions=options.positions,
        dtype="bfloat16",
        overwrite=True,
    )
    run_calibration(request, stages)
    stages.end()
    stages.begin("evaluate")
    held_out = map(str, texts["held-out"])
    given = ["--target", str(work / "target"), "--dtype", "bfloat16", "--text", *held_out]
    if rdk_cuda(["evaluate", str(output), *given, "--output", str(work / "evaluation")]) != 0:
        raise RuntimeError("evaluate failed")
    stages.end()
    return stages.rows


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    rows = measure(options)
    lines = [
        (row["stage"], f"{row['seconds']:.1f}", f"{row['peak_bytes'] / 1e9:.2f}") for row in rows
    ]
    print(table(("stage", "seconds", "peak GB"), lines, "lr"))
    print(f"\nIn all {sum(row['seconds'] for row in rows):.0f} seconds.")
    if options.output is not None:
        settings = {k: v for k, v in vars(options).items() if k not in ("output", "work")}
        about = {"run": now(), **describe(torch.device("cpu")), "layers": LAYERS, **settings}
        write_json({**about, "rows": rows}, options.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.studies.calibration_scale", description=__doc__)
    add = command.add_argument
    add("--work", type=Path, required=True, metavar="DIR", help="for models, text and results")
    add("--tokens", type=natural, default=128256, metavar="N", help="V_t (%(default)s)")
    add("--width", type=natural, default=4096, metavar="N", help="d (%(default)s)")
    add("--kept", type=natural, default=32000, metavar="N", help="V_d (%(default)s)")
    add("--positions", type=natural, default=2048, metavar="N", help="that are read (%(default)s)")
    add("--screen-bytes", type=float, default=0.1, help="as of calibrate (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file to write")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
