"""Tokens a second with Gemma 3 270M on this machine: the target alone, and with an EAGLE-3 drafter.

`python -m studies.gemma_decoding --device cpu --full DIR` takes the drafter with all
tokens that `python -m examples.eagle3.gemma` trains. Pruned, it has the tokenizer's first ones, a
general vocabulary, as published drafters have. Every row is a decoder, at a batch, a draft
length K and a temperature:

    decoder, batch, draft_length, temperature, dtype
    tokens_per_second       median, 10 % and 90 % of `rounds`, all decoders in turn; after the
                            prompts, which are the beginnings of modules that no drafter has read
    speed_up                over the target alone, likewise, within each round
    accepted_length         drafts accepted in a pass of the target
    shares                  of the time of a step: heads, bodies, sampling, and the rest
    run, date, load ...     as in profiling/results.py
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import GenerationConfig

from examples.demo import gemma
from examples.demo.corpus import held_out_files, read_text, training_files
from profiling.commands import (
    Parser,
    Progress,
    add_measuring,
    measure_rows,
    page_of,
    run_columns,
    run_command,
)
from profiling.machine import now
from profiling.results import Row
from profiling.tables import figure, table
from rdk_cuda import (
    Affinity,
    CombinedTokens,
    ScreenedTokens,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.calibration import screens_within
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.decoding.generation import Kind
from rdk_cuda.drafter import FullHead
from rdk_cuda.dynamic_tokens import recent_and_successors
from rdk_cuda.evaluation.timing import spread
from rdk_cuda.integrations.eagle3 import Eagle3Drafter, Eagle3Network, read_checkpoint
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from .gemma_acceptance import (
    Measured,
    Recorded,
    mean_probs_at,
    metric,
    offers,
    record_drafter,
    successor_counts,
    tokens_of,
    windows_of,
)

PROMPT, CALIBRATED, BUDGET, PROFILED = 256, 12, 0.05, 12
ALONE, LIBRARY = "target alone", "Transformers' generate, without speculation"
PARTS = ("target head", "target body", "drafter head", "drafter body", "sampling", "rest")


@dataclass
class Speed:
    """One generation: what it yielded after the prompts were read."""

    tokens_per_second: float
    accepted_length: float


def decoders(
    model: Any, tokenizer: Any, network: Eagle3Network, vocabulary: Vocabulary
) -> dict[str, dict[str, Any]]:
    """Of each decoder, what `SpeculativeDecoder` takes besides the target and the draft length."""
    weight = network.lm_head.weight.detach()
    files = training_files()
    windows = windows_of(files[:: len(files) // (3 * CALIBRATED)], "code", tokenizer, CALIBRATED)
    near = record_drafter(model, network, windows)
    near.target, near.drafter = near.target.float(), near.drafter.float()
    head = weight, None
    screen = best_screen(head, vocabulary, near, Measured(weight.float(), near, vocabulary, 1.0))
    counts = successor_counts(vocabulary.target_size, tokens_of(files[::3], "code", tokenizer))
    successors = SuccessorTable.from_counts(counts, vocabulary, width=128)
    named = recent_and_successors(vocabulary, successors, width=128)
    kept = {"affinity": Affinity.intersection(vocabulary), "vocabulary": vocabulary}
    everything = CombinedTokens([named, screen], vocabulary, width=128 + screen.width)

    def drafter(rows: Tensor) -> Eagle3Drafter:
        return Eagle3Drafter(network, model.config.num_hidden_layers, head=rows)

    def pruned(**more: Any) -> dict[str, Any]:
        return {"drafter": drafter(weight[vocabulary.draft_ids]), **kept, **more}

    return {
        "full drafter": {"drafter": drafter(weight)},
        "pruned": pruned(),
        "screened tokens": pruned(dynamic_tokens=screen, full_head=head),
        "screened, recent and successor tokens": pruned(dynamic_tokens=everything, full_head=head),
    }


def best_screen(
    head: FullHead, vocabulary: Vocabulary, near: Recorded, measured: Measured
) -> ScreenedTokens:
    """Of the screens within the budget, the one with the most acceptance."""
    mean_probs = mean_probs_at(near.target, head[0].float())[1.0]
    return max(
        screens_within(BUDGET, head, vocabulary, metric(near), mean_probs),
        key=lambda screen: float(measured.acceptance(offers(screen, near)).mean()),
    )


class TokenTimes:
    """When tokens came; a streamer of Transformers, too, which gets the prompts first."""

    def __init__(self) -> None:
        self.moments: list[tuple[float, int]] = []

    def __call__(self, sequence: int, tokens: list[int], kinds: list[Kind]) -> None:
        """A sequence's tokens of a step of ours."""
        self.moments.append((time.perf_counter(), len(kinds)))

    def put(self, tokens: Tensor) -> None:
        """The prompts, then a step's tokens."""
        if tokens.dim() == 1:
            self.moments += [(time.perf_counter(), 1)] * len(tokens)

    def end(self) -> None:
        """Nothing is left to note."""

    def tokens_per_second(self, batch: int) -> float:
        """After two steps, in which both models read the prompts."""
        first, decoded = self.moments[2 * batch - 1][0], self.moments[2 * batch :]
        return sum(count for _, count in decoded) / (decoded[-1][0] - first)


@dataclass
class Case:
    """What all decoders of one comparison do."""

    prompts: list[list[int]]
    temperature: float
    tokens: int

    def decode(self, decoder: SpeculativeDecoder, seed: int) -> Speed:
        """Once with our decoder."""
        watch = TokenTimes()
        generation = decoder.generate(
            self.prompts,
            max_new_tokens=self.tokens,
            temperature=self.temperature,
            seeds=seed,
            on_tokens=watch,
        )
        speed = watch.tokens_per_second(len(self.prompts))
        return Speed(speed, generation.statistics.mean_accepted_length)

    def generate(self, model: Any, seed: int) -> Speed:
        """Once with the library's `generate`, without speculation."""
        options: dict[str, Any] = {"do_sample": self.temperature > 0, "top_k": 0}
        options |= {"temperature": self.temperature} if self.temperature else {}
        config = GenerationConfig(max_new_tokens=self.tokens, pad_token_id=0, **options)
        torch.manual_seed(seed)
        watch, ids = TokenTimes(), torch.tensor(self.prompts)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=watch
        )
        return Speed(watch.tokens_per_second(len(ids)), 0.0)


def shares(decoder: SpeculativeDecoder, prompts: Sequence[list[int]]) -> dict[str, float]:
    """Of the time after the first step, which reads the prompts: what each part takes."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        decoder.generate(prompts, max_new_tokens=PROFILED, temperature=1.0, seeds=0)
    events = [each for each in seen.events() if each.name]
    steps = [each for each in events if each.name == "rdk: step"]
    begin = min(each.time_range.end for each in steps)
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.time_range.start >= begin:
            name, taken = event.name.removeprefix("rdk: "), event.time_range.elapsed_us()
            if name == "step":
                spent["step"] += taken
            elif name in ("draft", "verify", "gather logits"):
                spent["sampling"] += taken
            elif name in ("target forward", "drafter forward"):
                spent[name] += taken
            elif name == "aten::linear" and is_head(event, decoder.target.vocabulary_size):
                spent[f"{reader_of(event)} head"] += taken
    for who in ("target", "drafter"):
        spent[f"{who} body"] = spent[f"{who} forward"] - spent[f"{who} head"]
    spent["rest"] = spent["step"] - sum(spent[part] for part in PARTS)
    return {part: spent[part] / spent["step"] for part in PARTS}


def is_head(event: Any, vocabulary: int) -> bool:
    """Whether a linear map has more rows than any in a body."""
    shapes = event.input_shapes
    return len(shapes) > 1 and len(shapes[1]) == 2 and shapes[1][0] >= vocabulary // 32


def reader_of(event: Any) -> str:
    """Whose forward pass an event belongs to: the target's or the drafter's."""
    while event is not None and not event.name.endswith(" forward"):
        event = event.cpu_parent
    return "target" if event is None else str(event.name).split()[1]


def rows(arguments: argparse.Namespace, progress: Progress) -> Iterator[Row]:
    """All decoders in turn, for each batch, temperature and draft length."""
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    progress.show("loading")
    models = gemma.load_gemma()
    model, tokenizer = models.target.to(getattr(torch, arguments.dtype)), models.tokenizer
    network = read_checkpoint(arguments.full, model).network
    vocabulary = Vocabulary(torch.arange(arguments.kept), len(network.lm_head.weight))
    texts = [tokenizer(read_text(file))["input_ids"] for file in held_out_files()]
    given = decoders(model, tokenizer, network, vocabulary)
    target = HuggingFaceModel(model, state_layers=given["full drafter"]["drafter"].state_layers)
    common: Row = {
        "dtype": arguments.dtype,
        "kept": arguments.kept,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        **run_columns(parser(), arguments),
    }
    alone = SpeculativeDecoder(target, draft_length=0)
    built: dict[tuple[str, int], Any] = {(ALONE, 0): alone, (LIBRARY, 0): model}
    for length in arguments.draft_length:
        for name, options in given.items():
            built[name, length] = SpeculativeDecoder(target, draft_length=length, **options)
    for batch in arguments.batch:
        for temperature in arguments.temperature:
            case = Case([text[:PROMPT] for text in texts[:batch]], temperature, arguments.tokens)
            progress.show(f"batch {batch}, T = {temperature}")
            yield from compared(built, case, arguments.rounds, common)


def compared(
    built: Mapping[tuple[str, int], Any], case: Case, rounds: int, common: Row
) -> Iterator[Row]:
    """Rows of one case."""
    taken: dict[tuple[str, int], list[Speed]] = defaultdict(list)
    for turn in range(rounds + 1):  # the first does not count
        for key, decoder in built.items():
            run = case.generate if key[0] == LIBRARY else case.decode
            one = run(decoder, turn)
            taken[key] += [one] if turn else []
    alone, load = taken[ALONE, 0], os.getloadavg()[0]
    for (name, length), several in taken.items():
        pairs = zip(several, alone, strict=True)
        ratios = [each.tokens_per_second / base.tokens_per_second for each, base in pairs]
        decoder = built[name, length]
        yield {
            **{"decoder": name, "batch": len(case.prompts), "draft_length": length},
            "temperature": case.temperature,
            "tokens_per_second": spread([each.tokens_per_second for each in several]),
            "speed_up": spread(ratios),
            "accepted_length": sum(each.accepted_length for each in several) / len(several),
            "shares": {} if name == LIBRARY else shares(decoder, case.prompts),
            **{**common, "date": now(), "load": load},
        }


def preamble(row: Row) -> str:
    """What is measured."""
    return (
        f"Gemma 3 270M, V_t 262,144, {row['dtype']}; prompts of {PROMPT} tokens of source code, "
        f"{row['tokens']} more of each. Medians of {row['rounds']} rounds with the middle 80 %, "
        "all decoders in turn. The drafter is of one layer on the target's states; pruned, it has "
        f"the first {row['kept']:,} tokens. The screen reads {BUDGET:.0%} of the other rows' "
        "bytes. Shares are of a run at T = 1, profiled."
    )


def section(own: Sequence[Row]) -> list[str]:
    """One batch."""
    titles = ("", "T", "K", "accepted", "tokens / s", "× alone", *PARTS)
    return [f"## Batch {own[0]['batch']}", table(titles, map(cells, own), "lrrr")]


def cells(row: Row) -> list[str]:
    """In the order of the titles."""
    times = [figure(each) for each in row["tokens_per_second"]]
    ratios = [f"{each:.2f}" for each in row["speed_up"]]
    return [
        row["decoder"],
        f"{row['temperature']:g}",
        str(row["draft_length"] or ""),
        f"{row['accepted_length']:.2f}",
        f"{times[0]} [{times[1]}, {times[2]}]",
        f"{ratios[0]} [{ratios[1]}, {ratios[2]}]",
        *(f"{row['shares'][part]:.0%}" if row["shares"] else "" for part in PARTS),
    ]


page = partial(page_of, "Decoding with Gemma 3 270M", preamble, "batch", section)


def parser() -> Parser:
    """The command line."""
    summary = (__doc__ or "").splitlines()[0]
    command = Parser(prog="python -m studies.gemma_decoding", description=summary)
    add_measuring(command, "JSON file to append rows to; next to it the same rows as tables")
    add = command.add_argument
    add("--full", type=Path, required=True, metavar="DIR", help="the drafter with all tokens")
    add("--kept", type=natural, default=32768, metavar="V_d", help="first tokens (%(default)s)")
    add("--batch", type=natural, nargs="+", default=[1, 8], metavar="B", help="(1 8)")
    add("--draft-length", type=natural, nargs="+", default=[1, 2, 4], metavar="K", help="(1 2 4)")
    add("--temperature", type=float, nargs="+", default=[1.0, 0.0], metavar="T", help="(1 0)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(%(default)s)")
    add("--tokens", type=natural, default=48, metavar="N", help="of each sequence (%(default)s)")
    add("--rounds", type=natural, default=5, metavar="N", help="(%(default)s)")
    return command


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and, if asked to, write."""
    return measure_rows(arguments, "gemma_decoding", lambda shown: rows(arguments, shown), page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(parser(), run, arguments)


if __name__ == "__main__":
    sys.exit(main())
