"""Whether sampled text keeps the target's distribution with an assistant of another tokenizer.

`python -m studies.universal_assistance` samples two tokens after one prompt, many times, by
Transformers' `generate` with its own universal assistance (arXiv:2502.05202, "TLI"), and with
`Generate` of this package. The models are tiny random Llamas with byte-level tokenizers of 259 and
260 tokens, so the exact distribution of both tokens is known. Each row is a method:

    first, pairs        Pearson's chi-square of the first token, and of both together
    total_variation     of the first token, from the exact distribution
    noise               about what that is for as many exact draws

*Sorted* is a control: the same call, but the assistant's `get_vocab` is sorted by id. So it is the
order of that mapping, in which Transformers prunes the assistant's head, and nothing else. The
library's mapping is in another order in every process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.demo.chi_square import chi_square
from profiling.commands import Parser, run_command, write_found
from profiling.machine import ROOT
from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.cli.arguments import natural
from rdk_cuda.integrations.huggingface import Generate

RESULTS = ROOT / "profiling" / "results" / "universal-assistance" / "cpu.json"
TEXT, NEW = "ab a", 2

Row = dict[str, Any]


class Sorted(PreTrainedTokenizerFast):  # type: ignore[misc]
    """A tokenizer whose mapping is in the order of its ids."""

    def get_vocab(self) -> dict[str, int]:
        """Sort what the library has."""
        return dict(sorted(super().get_vocab().items(), key=lambda item: item[1]))


def tokenizer(merges: Sequence[tuple[str, str]], kind: Any = PreTrainedTokenizerFast) -> Any:
    """All bytes and these merges."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in merges]
    fast = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, list(merges)))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return kind(tokenizer_object=fast)


def assistants(kind: Any = PreTrainedTokenizerFast) -> Any:
    """The assistant's tokenizer: some tokens that the target lacks."""
    return tokenizer([("a", "b"), ("b", "a"), ("Ġ", "a"), ("ab", "ab")], kind)


def llama(size: int, seed: int) -> Any:
    """Random, and sure enough of itself that a few dozen tokens have nearly all of the mass."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def exact(target: Any, prompt: list[int]) -> Tensor:
    """The probability of each pair of tokens, `[V_t, V_t]` float64."""
    first = target(torch.tensor([prompt])).logits[0, -1].double().softmax(0)
    after = torch.tensor([[*prompt, token] for token in range(len(first))])
    pairs: Tensor = first[:, None] * target(after).logits[:, -1].double().softmax(1)
    return pairs


def sampled(target: Any, prompt: list[int], runs: int, options: dict[str, Any]) -> Tensor:
    """`[runs, 2]` tokens, each run with a seed of its own."""
    ids, found = torch.tensor([prompt]), []
    for run in range(runs):
        torch.manual_seed(run)
        whole = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=NEW,
            pad_token_id=0,
            **options,
        )
        found.append(whole[0, len(prompt) :])
    return torch.stack(found)


def judged(tokens: Tensor, pairs: Tensor) -> Row:
    """How the first tokens, and all pairs, fit their distributions."""
    first, runs = pairs.sum(1), len(tokens)
    one = chi_square(tokens[:, 0], first)
    both = chi_square(tokens[:, 0] * len(first) + tokens[:, 1], pairs.flatten())
    share = torch.bincount(tokens[:, 0], minlength=len(first)) / runs
    return {
        "first": one._asdict(),
        "pairs": both._asdict(),
        "total_variation": float((share - first).abs().sum() / 2),
        "noise": float((first * (1 - first) / (2 * torch.pi * runs)).sqrt().sum()),
    }


def measure(runs: int) -> list[Row]:
    """All methods, each with models of its own, since assistance changes the assistant's."""
    ours = tokenizer([("b", "b"), ("a", "b"), ("Ġ", "b")])
    target = llama(len(ours), 1)
    prompt = ours(TEXT, add_special_tokens=False)["input_ids"]
    pairs, rows = exact(target, prompt), list[Row]()

    def add(name: str, **options: Any) -> None:
        print(f"{name} ...", file=sys.stderr)
        found = judged(sampled(target, prompt, runs, options), pairs)
        rows.append({"method": name, "runs": runs, **found})

    def assisted(kind: Any) -> dict[str, Any]:
        theirs = assistants(kind)
        helper = llama(len(theirs), 2)
        return {"assistant_model": helper, "tokenizer": ours, "assistant_tokenizer": theirs}

    add("Transformers, target alone")
    add("Transformers, universal assistance", **assisted(PreTrainedTokenizerFast))
    add("Transformers, universal assistance, sorted", **assisted(Sorted))
    theirs = assistants()
    pair = {"tokenizer": ours, "drafter_tokenizer": theirs}
    add("rdk_cuda, between", custom_generate=Generate(llama(len(theirs), 2), **pair))
    shared = Affinity.intersection(Vocabulary.between(theirs, ours))
    add("rdk_cuda, TLI", custom_generate=Generate(llama(len(theirs), 2), shared, **pair))
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    rows = measure(options.runs)
    write_found(options.output, transformers=transformers.__version__, rows=rows)
    for row in rows:
        fits = [
            f"{fit['statistic']:.1f} on {fit['degrees']}" for fit in (row["first"], row["pairs"])
        ]
        print(
            f"{row['method']}: chi-square of the first token {fits[0]}, of pairs {fits[1]} "
            f"degrees, total variation {row['total_variation']:.3f} (noise {row['noise']:.3f})"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.universal_assistance", description=__doc__)
    command.add_argument("--runs", type=natural, default=5000, metavar="N", help="of each method")
    command.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
