"""What rolling states back costs: a step of recurrent targets beside the library's plain pass.

`python -m studies.recurrent_states` reads a prompt, then K drafts and the token before them in one
pass, and rolls back to what is accepted: in batches another number in each sequence. The plain pass
is the model's own, of as many tokens over a cache of the library's. All of a round is measured in
turn, of this thread's own time, and ratios are medians over rounds: other load changes both.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from profiling.commands import Parser, run_command, write_found
from profiling.tables import figure, table
from rdk_cuda.cli.arguments import natural
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.library import cache_argument

K, PROMPT = 4, 64
ACCEPTED = (2, 0, 4, 1)
RATIOS = ("pass_to_plain", "committing_to_plain", "committing_to_pass")
SIZE: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408}
SIZE |= {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2}
SIZE |= {"head_dim": 64, "max_position_embeddings": 4096, "eos_token_id": None}
DELTA = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
DELTA |= {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
SCAN = {
    "mamba_n_heads": 16,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
# As in Qwen3.5: three recurrent layers, then one of full attention.
PATTERN = ("linear_attention", "linear_attention", "linear_attention", "full_attention") * 2
CONVOLUTIONS = [kind.replace("linear_attention", "conv") for kind in PATTERN]
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "delta rule": ("qwen3_5_text", {**DELTA, "layer_types": list(PATTERN)}),
    "Mamba-2": ("bamba", {**SCAN, "attn_layer_indices": [3, 7]}),
    "convolution": ("lfm2", {"layer_types": CONVOLUTIONS}),
    "attention": ("llama", {}),
}


def steps(model: Any, batch: int) -> Callable[[], dict[str, float]]:
    """A function that takes the plain pass, and ours and what follows it, one after the other.

    It returns seconds, and bytes of states, and of all that is kept to roll back, of a sequence.
    """
    wrapped, noise = HuggingFaceModel(model), torch.Generator().manual_seed(0)
    prompt, step = (
        torch.randint(1, SIZE["vocab_size"], (batch, count), generator=noise)
        for count in (PROMPT, K + 1)
    )
    name = cache_argument(model)
    read = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=prompt, use_cache=True, **{name: read})
    accepted = [PROMPT + 1 + ACCEPTED[b % 4] for b in range(batch)]

    def turn() -> dict[str, float]:
        given = {name: copy.deepcopy(read)}
        start = time.thread_time()
        with torch.no_grad():
            model(input_ids=step, use_cache=True, **given)
        plain = time.thread_time() - start
        wrapped.reset(batch)
        wrapped.feed(prompt.tolist(), [1] * batch)
        wrapped.rollback(wrapped.lengths)
        start = time.thread_time()
        wrapped.feed(step.tolist(), [K + 1] * batch)
        between = time.thread_time()
        states, kept = bytes_of(wrapped)
        resumed = time.thread_time()
        wrapped.rollback(accepted)
        end = time.thread_time()
        seconds = {"plain": plain, "pass": between - start, "committing": end - resumed}
        return {**seconds, "states": states / batch, "kept": kept / batch}

    return turn


def bytes_of(wrapped: HuggingFaceModel) -> tuple[int, int]:
    """Of states, and of what is kept beside them: those before the pass, and what it noted."""
    cache = wrapped._recurrent
    if cache is None:
        return 0, 0
    kept: list[Any] = [*cache.newest.before.values()]
    for notes in cache.newest.notes.values():
        kept += [
            {0: note} if isinstance(note, torch.Tensor) else note.given for note in notes.values()
        ]
    tensors = [each for own in kept for each in own.values() if isinstance(each, torch.Tensor)]
    return sum(state.nbytes for state in cache.states()), sum(each.nbytes for each in tensors)


def measure(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Medians of times and of their ratios within a round."""
    kind, changes = TYPES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZE | changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    turn = steps(model, batch)
    turns = [turn() for _ in range(rounds + 2)][2:]
    ratios = [
        {
            "pass_to_plain": each["pass"] / each["plain"],
            "committing_to_plain": each["committing"] / each["plain"],
            "committing_to_pass": each["committing"] / each["pass"],
        }
        | each
        for each in turns
    ]
    row = {part: statistics.median(each[part] for each in ratios) for part in ratios[0]}
    return {"layers": name, "type": kind, "batch": batch, **row}


def page(rows: list[dict[str, Any]]) -> str:
    """The table."""
    lines = [
        [
            row["layers"],
            str(row["batch"]),
            *(figure(1e3 * row[name]) for name in ("plain", "pass", "committing")),
            *(f"{row[f'{name}']:.0%}" for name in RATIOS),
            *(f"{row[name] / 1000:.0f}" for name in ("states", "kept")),
        ]
        for row in rows
    ]
    titles = ["layers", "batch", "plain pass, ms", "our pass, ms", "committing, ms"]
    titles += ["our pass to plain", "committing to plain", "committing to ours"]
    return table([*titles, "states a sequence, kB", "kept beside, kB"], lines, "lr")


def run(options: argparse.Namespace) -> None:
    """Measure, print and, if asked to, write."""
    torch.set_num_threads(1)
    rows = [
        measure(name, batch, options.rounds) for name in options.layers for batch in options.batch
    ]
    print(page(rows))
    write_found(options.output, page(rows), draft_length=K, rows=rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.recurrent_states", description=__doc__)
    add = command.add_argument
    add("--layers", nargs="+", choices=TYPES, default=list(TYPES), help="which kinds (all)")
    add("--batch", type=natural, nargs="+", default=[1, 4], metavar="B", help="(1 4)")
    add("--rounds", type=natural, default=15, metavar="N", help="(%(default)s)")
    add("--output", type=Path, metavar="FILE", help="JSON file")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
