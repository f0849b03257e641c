"""Train an EAGLE-3 drafter for a model of Hugging Face, on a text, and write it as a checkpoint.

It reads the text with the target, so nothing has to be generated first. What it writes loads with
`rdk_cuda.integrations.eagle3.read_checkpoint`, and in EAGLE's format also elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import LlamaConfig

from rdk_cuda import Vocabulary
from rdk_cuda.integrations.eagle3 import Eagle3Checkpoint, Eagle3Config, Eagle3Network
from rdk_cuda.recipes.inputs.loading import load_model, load_tokenizer

from .training import Recipe, Training

SAVE_STEPS = 100


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    options = parser().parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer("--target", options.target)
    target = load_model("--target", options.target).to(getattr(torch, options.dtype))
    text = tokens_of(tokenizer, options.text)
    vocabulary = kept_tokens(options, tokenizer, text, len(target.get_output_embeddings().weight))
    torch.manual_seed(options.seed)
    network = new_network(target, vocabulary, options.state_layers)
    recipe = Recipe(
        options.steps, options.context, options.batch, own_head=options.own_head, seed=options.seed
    )
    checkpoint = options.work / "checkpoint.pt"
    begin = tokenizer.bos_token_id if text[0] == tokenizer.bos_token_id else None
    training = Training(target, network, vocabulary, text, recipe, checkpoint, begin)
    try:
        watch(training)
    except KeyboardInterrupt:
        training.save()
        sys.exit(f"stopped after step {training.step}; the same command goes on from there")
    write(options.out, network, vocabulary, recipe)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog="python -m examples.eagle3", description=__doc__)
    add = partial(result.add_argument, type=int)
    result.add_argument("--target", type=Path, required=True, help="directory or GGUF file")
    result.add_argument("--text", type=Path, nargs="+", required=True, help="files to train on")
    result.add_argument("--out", type=Path, required=True, help="directory of the drafter")
    result.add_argument("--work", type=Path, required=True, help="directory to go on from")
    add("--draft-size", help="tokens of the head; absent: the target's")
    chosen = result.add_mutually_exclusive_group()
    chosen.add_argument(
        "--vocabulary-text", type=Path, nargs="+", help="files whose tokens are kept"
    )
    chosen.add_argument(
        "--lowest-ids", action="store_true", help="keep the first tokens, a general vocabulary"
    )
    add("--state-layers", nargs=3, help="layers of the target that are read; absent: EAGLE's")
    result.add_argument("--own-head", action="store_true", help="train the head's rows, too")
    dtypes = ("float32", "bfloat16")
    result.add_argument("--dtype", choices=dtypes, default="float32", help="of the target")
    add("--steps", default=2000)
    add("--context", default=128)
    add("--batch", default=8)
    add("--seed", default=1)
    return result


def tokens_of(tokenizer: Any, files: list[Path]) -> Tensor:
    """All files as one stream of tokens."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    return torch.tensor([token for text in texts for token in tokenizer(text)["input_ids"]])


def kept_tokens(
    options: argparse.Namespace, tokenizer: Any, text: Tensor, target_size: int
) -> Vocabulary:
    """Those of the head: most likely in a text, or first in the vocabulary."""
    size = options.draft_size or target_size
    if options.lowest_ids:
        return Vocabulary(torch.arange(size), target_size)
    chosen_on = tokens_of(tokenizer, options.vocabulary_text) if options.vocabulary_text else text
    counts = torch.bincount(chosen_on, minlength=target_size)
    return Vocabulary.most_likely(counts.float(), size)


def new_network(
    target: Any, vocabulary: Vocabulary, state_layers: list[int] | None
) -> Eagle3Network:
    """Of the target's width, with its embeddings, and its rows in the head.

    It begins as the identity on the deepest of the states. The states are normalised first: a few
    of their dimensions are hundreds of times larger than others, and otherwise nothing else is
    learned for long (Gemma 3 270M after 61,440 tokens: 5.0 nats instead of 6.1).
    """
    text = target.config.get_text_config()
    heads = max(1, text.hidden_size // 64)
    layer = LlamaConfig(
        vocab_size=vocabulary.target_size,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        head_dim=64,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=1e-6,
    )
    layers = tuple(state_layers) if state_layers else None
    network = Eagle3Network(
        Eagle3Config(layer, len(vocabulary.draft_ids), text.hidden_size, layers, fc_norm=True)
    )
    first: Any = network.layers[0]
    torch.nn.init.zeros_(first.self_attn.o_proj.weight)
    torch.nn.init.zeros_(first.mlp.down_proj.weight)
    deepest = torch.eye(text.hidden_size)
    network.fc.weight.data.copy_(torch.cat([0 * deepest, 0 * deepest, deepest], dim=1))
    rows = target.get_output_embeddings().weight.detach()[vocabulary.draft_ids]
    network.embed_tokens.weight.data.copy_(target.get_input_embeddings().weight)
    network.lm_head.weight.data.copy_(rows)
    return network


def watch(training: Training) -> None:
    """Train with a progress bar, and a checkpoint now and then."""
    recent = 0.0
    with tqdm(total=training.recipe.steps, desc="EAGLE-3", unit="step") as progress:
        for loss in training.run():
            recent = loss if recent == 0.0 else 0.98 * recent + 0.02 * loss
            progress.update(training.step - progress.n)
            progress.set_postfix(loss=f"{recent:.3f}", refresh=False)
            if training.step % SAVE_STEPS == 0 or training.step == training.recipe.steps:
                training.save()


def write(folder: Path, network: Eagle3Network, vocabulary: Vocabulary, recipe: Recipe) -> None:
    """EAGLE's format, in float16. Embeddings, and a head that was not trained, are the target's."""
    shared = ["embed_tokens.weight", *(() if recipe.own_head else ("lm_head.weight",))]
    Eagle3Checkpoint(network, vocabulary, shared=frozenset(shared)).save_pretrained(folder)


if __name__ == "__main__":
    main()
