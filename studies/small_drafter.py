"""An ordinary small drafter of Gemma 3 270M: its first and its last layer, trained on what it says.

    python -m studies.small_drafter --out DIR

It learns Gemma's distributions on the source code of Python's standard library, as the EAGLE-3
heads of `examples.eagle3` do, and reads and writes with Gemma's embeddings. DIR is a model of
Hugging Face. `python -m studies.distillation --model gemma3-270m --drafter DIR --train all` then
trains it on what is accepted (DistillSpec, arXiv:2310.08461). The weights are under Gemma's terms.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from examples.demo import gemma
from examples.demo.corpus import training_files
from examples.eagle3.__main__ import tokens_of
from examples.eagle3.distillation import Distillation, sampled_columns
from profiling.commands import Parser, run_command
from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.integrations.huggingface.placement import weight_of
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.loading import load_model, load_tokenizer, quiet
from rdk_cuda.recipes.progress import Stages

CONTEXT, BATCH, COLUMNS, WARMUP_STEPS = 256, 2, 16384, 20


def small(target: Any, layers: Sequence[int]) -> Any:
    """A model of these layers of a target."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(layers)
    if types := getattr(target.config, "layer_types", None):
        config.layer_types = [types[at] for at in layers]
    model = AutoModelForCausalLM.from_config(config)
    weights = target.state_dict()
    names = {f"model.layers.{at}.": f"model.layers.{new}." for new, at in enumerate(layers)}
    chosen = {name: value for name, value in weights.items() if ".layers." not in name}
    for old, new in names.items():
        own = [name for name in weights if name.startswith(old)]
        chosen |= {name.replace(old, new): weights[name] for name in own}
    model.load_state_dict(chosen)
    return model.eval()


def steps_of(
    target: Any,
    model: Any,
    text: Tensor,
    begin: int,
    *,
    steps: int,
    learning_rate: float,
    seed: int,
) -> Iterator[float]:
    """Train; yields the loss of each step, in nats a token."""
    head = weight_of(target.get_output_embeddings()).detach()
    order = torch.bincount(text, minlength=len(head)).argsort(descending=True, stable=True)
    model.get_input_embeddings().requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    count = BATCH * CONTEXT
    first, weights = torch.full((BATCH, 1), begin), torch.full((1, count), 1 / count)
    for step in range(steps):
        rate = min((step + 1) / WARMUP_STEPS, 1.0) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = learning_rate * rate
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        blocks = torch.cat([first, text[starts + torch.arange(CONTEXT - 1)]], dim=1)
        with torch.no_grad():
            final = target.base_model(blocks, use_cache=False).last_hidden_state
        states = model.base_model(blocks, use_cache=False).last_hidden_state
        columns, counts = sampled_columns(order, blocks.unique(), COLUMNS, generator)
        rows = head[columns]
        loss = Distillation.apply(  # type: ignore[no-untyped-call]
            *(states.flatten(0, 1)[None], rows, final.flatten(0, 1), rows),
            *(weights, counts),
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


def run(options: argparse.Namespace) -> None:
    """Make, train and write it."""
    if options.out.exists():
        raise InputError(f"--out {options.out} exists; name another folder")
    quiet()
    gemma.refuse_missing()
    print(gemma.terms(), file=sys.stderr)
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer("--target", gemma.weights())
    target = load_model("--target", gemma.weights())
    model = small(target, options.layers or (0, target.config.num_hidden_layers - 1))
    with Stages() as stages:
        for files in stages.each([training_files()], "Reading the standard library"):
            text = tokens_of(tokenizer, files)
        recent = 0.0
        how = {name: getattr(options, name) for name in ("steps", "learning_rate", "seed")}
        losses = steps_of(target, model, text, tokenizer.bos_token_id, **how)
        for _ in stages.each(range(options.steps), "Training"):
            loss = next(losses)
            recent = 0.95 * recent + 0.05 * loss if recent else loss
    print(f"{recent:.3f} nats a token at the end")
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.small_drafter", description=__doc__)
    add = command.add_argument
    add("--layers", type=int, nargs="+", metavar="N", help="of the target (the first and the last)")
    for name, default in (("steps", 400), ("seed", 1), ("threads", torch.get_num_threads())):
        add(f"--{name}", type=natural, default=default, metavar="N", help="(%(default)s)")
    add("--learning-rate", type=positive, default=1e-3, metavar="R", help="(%(default)s)")
    add("--out", type=Path, required=True, metavar="DIR")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
