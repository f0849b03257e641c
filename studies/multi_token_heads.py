"""What trimming a native multi-token head loses, and what comes back: acceptance and time.

    python -m studies.hybrid_target --out DIR
    python -m studies.multi_token_heads --target DIR --output FILE

With Transformers' own drafting with the same heads in the same run, where it takes the target:

    python -m studies.hybrid_target --model-type glm4_moe --block-steps 300 --out DIR
    python -m studies.multi_token_heads --target DIR --block-drafter DIR/dflash --output FILE

The head is calibrated as it drafts, on the demo's text. Each prompt, of held-out code or prose, is
continued with each head in turn: the target's own, trimmed to a share of its rows, and trimmed with
virtual and dynamic tokens. A row:

    text, temperature, keep, how
    accepted             drafts a pass of the target, of K
    length               tokens a pass, of the full head's: for equally many tokens, its passes to
                         those of this head
    speed                tokens a second of this thread's own time, of the target's alone

each with the ends of a 95 % interval, a bootstrap over documents. Greedy rows are drawn with the
drafters that are calibrated at temperature 1. The library drafts with each layer of a head once,
so it is to be compared with one draft a pass. A peer that refuses the target has one row, with its
reason.

`--simulate` has only the time of one draft with a large head, of random numbers in bfloat16: the
whole head, against the rows that are kept with dynamic columns gathered from it. Rounds alternate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

import rdk_cuda
from examples.demo.corpus import calibration_files, docstrings, held_out_files, read_text
from examples.demo.text import windows_of
from profiling.commands import Parser, run_command, write_found
from profiling.tables import figure, table
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.calibration import Setting, calibrate, record
from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.integrations.block_drafters import BlockDrafter, BlockNetwork, read_block_drafter
from rdk_cuda.integrations.eagle3 import read_drafts
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.mtp import MtpDrafter, MtpNetwork, read_mtp
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.documents import encode
from rdk_cuda.recipes.inputs.loading import load_tokenizer, quiet
from rdk_cuda.recipes.report.rows import Bootstrap
from studies.transformers_peers import (
    DFLASH,
    MTP,
    Measured,
    generated,
    library_block,
    library_mtp,
)

K, TEMPERATURES, SHARES = 4, (1.0, 0.7, 0.0), (0.25, 0.0625, 0.01)
WINDOW, PROMPT = 128, 96
ALONE, FULL, ONE, BLOCK = "target alone", "full head", "full head, one draft", "DFlash, full head"

Row = dict[str, Any]


class Head(NamedTuple):
    """What drafts: a share of the rows, how, and the parts; None for the target's head."""

    keep: float
    how: str
    pruned: PrunedDrafter | None


class Writer(NamedTuple):
    """A row's name, and what continues a prompt at a temperature with a seed."""

    keep: float
    how: str
    write: Callable[[list[int], float, int], Measured]


def heads_of(
    target: HuggingFaceModel, network: MtpNetwork, tokenizer: Any, options: argparse.Namespace
) -> dict[float, list[Head]]:
    """At each temperature that is calibrated for."""
    drafter, files = MtpDrafter(network), calibration_files()
    windows = windows_of(tokenizer, files, options.positions, WINDOW)
    documents = [encode(tokenizer, read_text(file)) for file in files]
    temperatures = [t for t in TEMPERATURES if t > 0]
    recording = record(read_drafts(target, drafter, K), windows, temperatures=temperatures)
    settings = [Setting(keep, t) for t in temperatures for keep in options.keep]
    found = {t: [Head(1.0, how, None) for how in (ALONE, FULL, ONE)] for t in temperatures}
    whole = network.lm_head.weight, network.lm_head.bias
    for each in calibrate(recording, whole, documents, settings):
        keep, temperature = each.setting
        found[temperature] += [
            Head(keep, "trimmed", each.plain.drafter),
            Head(keep, "with virtual and dynamic tokens", each.method.drafter),
        ]
    return found


def decoder_of(target: HuggingFaceModel, network: MtpNetwork, head: Head) -> SpeculativeDecoder:
    """With this head."""
    if head.how == ALONE:
        return SpeculativeDecoder(target, draft_length=0)
    if (pruned := head.pruned) is None:
        drafts = 1 if head.how == ONE else K
        return SpeculativeDecoder(target, MtpDrafter(network), draft_length=drafts)
    drafter = MtpDrafter(network, head=pruned.weight, head_bias=pruned.bias)
    own: dict[str, Any] = {"vocabulary": pruned.vocabulary, "dynamic_tokens": pruned.dynamic_tokens}
    return SpeculativeDecoder(target, drafter, pruned.affinity, draft_length=K, **own)


def prompts_of(tokenizer: Any, text: str, count: int) -> list[tuple[int, list[int]]]:
    """The number of its file, and tokens that end somewhere in it, some of each."""
    found = []
    for number, file in enumerate(held_out_files()):
        whole = read_text(file) if text == "code" else docstrings(read_text(file))
        ids = encode(tokenizer, whole)
        for part in range(1, count + 1):
            end = len(ids) * part // (count + 1)
            if end >= PROMPT:
                found.append((number, ids[end - PROMPT : end]))
    return found


def continued(
    decoder: SpeculativeDecoder, prompt: list[int], temperature: float, seed: int, tokens: int
) -> Measured:
    """A prompt, and how it went."""
    began = time.thread_time()
    said = decoder.generate(
        [prompt], max_new_tokens=tokens, temperature=temperature, seeds=[seed]
    ).statistics
    seconds = time.thread_time() - began
    return Measured(sum(said.accepted), said.target_passes, said.tokens, seconds)


def writer(keep: float, how: str, decoder: SpeculativeDecoder, tokens: int) -> Writer:
    """Make one of a decoder."""
    return Writer(keep, how, lambda prompt, t, seed: continued(decoder, prompt, t, seed, tokens))


def peer(how: str, model: Any, tokens: int, **options: Any) -> Writer | Row:
    """Make one of the library's `generate` with options, or a row that says why it refuses them."""

    def write(prompt: list[int], temperature: float, seed: int) -> Measured:
        given: dict[str, Any] = {"temperature": temperature, "seed": seed, "tokens": tokens}
        return generated(model, prompt, **given, **options)[1]

    try:
        write([1, 2, 3], 0.0, 0)
    except ValueError as error:
        return {"how": how, "keep": 1.0, "refused": str(error)}
    return Writer(1.0, how, write)


def peers_of(
    stack: ExitStack, model: Any, network: MtpNetwork, block: BlockNetwork | None, tokens: int
) -> list[Writer | Row]:
    """List the library with the same heads, and ours with the block drafter."""
    found = [peer(MTP, model, tokens, **stack.enter_context(library_mtp(model, network)))]
    if block is None:
        first = found[0]
        reason = first["refused"] if isinstance(first, dict) else "needs --block-drafter DIR"
        return [*found, {"how": DFLASH, "keep": 1.0, "refused": reason}]
    drafter = BlockDrafter(block)
    reads = HuggingFaceModel(model, state_layers=drafter.state_layers)
    decoder = SpeculativeDecoder(reads, drafter, draft_length=drafter.places)
    theirs = {"assistant_model": library_block(block), "speculation_type": "dflash"}
    return [*found, writer(1.0, BLOCK, decoder, tokens), peer(DFLASH, model, tokens, **theirs)]


def rows_of(
    target: HuggingFaceModel,
    network: MtpNetwork,
    heads: dict[float, list[Head]],
    peers: Sequence[Writer | Row],
    tokenizer: Any,
    options: argparse.Namespace,
) -> Iterator[Row]:
    """Of each text, temperature and head; then of peers that refuse the target."""
    for text in ("code", "prose"):
        prompts = prompts_of(tokenizer, text, options.prompts)
        bootstrap = Bootstrap([number for number, _ in prompts], seed=0)
        for temperature in TEMPERATURES:
            writers = [
                writer(head.keep, head.how, decoder_of(target, network, head), options.tokens)
                for head in heads[temperature or 1.0]
            ]
            writers += [each for each in peers if isinstance(each, Writer)]
            found: list[list[Measured]] = [[] for _ in writers]
            for seed, (_, prompt) in enumerate(prompts):
                for measured, own in zip(found, writers, strict=True):
                    measured.append(own.write(prompt, temperature, seed))
            alone, full = columns(found[0]), columns(found[1])
            for own, measured in zip(writers, found, strict=True):
                each = columns(measured)
                yield {
                    **{"text": text, "temperature": temperature},
                    **{"keep": own.keep, "how": own.how, "prompts": len(prompts)},
                    "accepted": bootstrap.ratio(each["accepted"], each["passes"]),
                    "length": bootstrap.ratio(full["passes"], each["passes"]),
                    "speed": bootstrap.ratio(alone["seconds"], each["seconds"]),
                    "tokens_a_second": float(each["tokens"].sum() / each["seconds"].sum()),
                }
    yield from (each for each in peers if isinstance(each, dict))


def columns(measured: Sequence[Measured]) -> dict[str, torch.Tensor]:
    """`[prompts, 1]` of each field."""
    every = torch.tensor(measured, dtype=torch.float64)[:, :, None]
    return dict(zip(Measured._fields, every.unbind(1), strict=True))


def simulated(rows: int, options: argparse.Namespace) -> Row:
    """The time of a draft with a head of so many rows, whole and trimmed, and what it reads."""
    width, kept, dynamic = options.width, options.kept, options.dynamic
    head = torch.empty(rows, width, dtype=torch.bfloat16).normal_(std=0.02)
    small = head[:kept].clone()
    generator = torch.Generator().manual_seed(0)
    whole = Affinity.intersection(Vocabulary.identity(rows))
    trimmed = Affinity.intersection(Vocabulary(list(range(kept)), rows))
    keys: dict[str, Any] = {"seeds": torch.tensor([1]), "positions": torch.tensor([0])}
    keys["temperature"] = torch.ones(1)

    def with_all(state: torch.Tensor) -> None:
        rdk_cuda.draft(linear(state, head), whole, **keys)

    def with_few(state: torch.Tensor) -> None:
        tokens = torch.randint(kept, rows, (1, dynamic), generator=generator)
        named: dict[str, Any] = {"dynamic_tokens": tokens.int()}
        named["dynamic_logits"] = rdk_cuda.gather_logits(state, head, tokens)
        rdk_cuda.draft(linear(state, small), trimmed, **keys, **named)

    times: dict[str, list[float]] = {"whole": [], "trimmed": []}
    for at in range(options.rounds + 1):
        state = torch.randn(1, width, generator=generator).bfloat16()
        for name, function in (("whole", with_all), ("trimmed", with_few)):
            began = time.perf_counter()
            function(state)
            times[name] += [time.perf_counter() - began] if at else []  # the first warms up
    seconds = {name: statistics.median(each) for name, each in times.items()}
    sizes = {"rows": rows, "width": width, "kept": kept, "dynamic": dynamic}
    ratios = sorted(a / b for a, b in zip(times["whole"], times["trimmed"], strict=True))
    return {
        **sizes,
        "whole_bytes": 2 * rows * width,
        "trimmed_bytes": 2 * (kept + dynamic) * width,
        **{f"{name}_seconds": each for name, each in seconds.items()},
        "times_faster": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
    }


def acceptance_page(rows: Sequence[Row]) -> str:
    """A line for each head."""

    def cell(value: Sequence[float], unit: float = 1.0) -> str:
        middle, low, high = (unit * part for part in value)
        return f"{middle:.3f} [{low:.3f}, {high:.3f}]"

    def line(row: Row) -> list[str]:
        keep, how = f"{row['keep']:.2%}", row["how"]
        if "refused" in row:
            return ["both", "all", keep, how, f"refused: {row['refused']}", "", ""]
        cells = (cell(row[name]) for name in ("accepted", "length", "speed"))
        return [row["text"], f"{row['temperature']:g}", keep, how, *cells]

    lines = list(map(line, rows))
    titles = ["text", "T", "rows", "head", "accepted a pass", "length, of the full head's"]
    return table([*titles, "speed, of the target alone"], lines, "lrrlrrr")


def simulation_page(rows: Sequence[Row]) -> str:
    """A line for each size."""
    lines = [
        [
            *(f"{row[name]:,}" for name in ("rows", "kept", "dynamic")),
            *(f"{row[name] / 1e6:,.0f}" for name in ("whole_bytes", "trimmed_bytes")),
            *(figure(1e3 * row[name]) for name in ("whole_seconds", "trimmed_seconds")),
            f"{row['times_faster']:.2f}",
        ]
        for row in rows
    ]
    titles = ["rows", "kept", "dynamic", "whole, MB", "trimmed, MB", "whole, ms", "trimmed, ms"]
    return table([*titles, "× faster"], lines, "r")


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    quiet()
    torch.set_num_threads(options.threads)
    if options.simulate:
        rows = [simulated(count, options) for count in options.simulate]
        page = simulation_page(rows)
    elif options.target is None:
        raise InputError("needs --target DIR, or --simulate V ...")
    else:
        tokenizer = load_tokenizer("--target", options.target)
        model = AutoModelForCausalLM.from_pretrained(options.target, dtype=torch.float32).eval()
        network = read_mtp(options.target, model)
        target = HuggingFaceModel(model, state_layers=MtpDrafter(network).state_layers)
        heads = heads_of(target, network, tokenizer, options)
        block = options.block_drafter and read_block_drafter(options.block_drafter, model)
        with ExitStack() as stack:
            peers = peers_of(stack, model, network, block, options.tokens)
            rows = list(rows_of(target, network, heads, peers, tokenizer, options))
        page = acceptance_page(rows)
    print(page)
    write_found(options.output, page, draft_length=K, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.multi_token_heads", description=__doc__)
    add = command.add_argument
    add("--target", type=Path, metavar="DIR", help="with a multi-token head in its files")
    add("--block-drafter", type=Path, metavar="DIR", help="DFlash for it, to be measured as well")
    add("--keep", type=positive, nargs="+", default=SHARES, metavar="SHARE", help="(.25 .0625 .01)")
    add("--simulate", type=natural, nargs="+", metavar="V", help="heads of so many rows")
    sizes = {"positions": 12_032, "prompts": 3, "tokens": 64, "rounds": 21, "width": 5120}
    sizes |= {"kept": 32_768, "dynamic": 512, "threads": 1}
    for name, default in sizes.items():
        add(f"--{name}", type=natural, default=default, metavar="N", help="(%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file; a page is written beside it")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
