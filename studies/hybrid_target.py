"""A small hybrid target in Qwen3.5's layout, with a multi-token head of its own in its files.

    python -m studies.hybrid_target --out DIR
    python -m studies.hybrid_target --model-type glm4_moe --block-steps 300 --out DIR

The target is a `Qwen3_5ForCausalLM`: three recurrent layers, then one of full attention, twice. It
is trained on the standard library's source, with the demo's tokenizer; then its head, which begins
as its last attention layer, learns the target's distributions along drafts. DIR has both as Qwen
publishes them: `mtp.*` beside `model.*`, in float16. With `--model-type glm4_moe` it has attention
and experts alone, as Transformers' own drafting needs; with `--block-steps` a DFlash drafter is
trained, too, in DIR/dflash.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, Qwen3Config

from examples.demo.corpus import held_out_files, training_files
from examples.demo.shipped import SHIPPED
from examples.demo.training import (
    MAX_POSITIONS,
    VOCABULARY_SIZE,
    Recipe,
    Run,
    build_optimizer,
    encode,
    obtain_tokenizer,
)
from profiling.commands import Parser, run_command
from rdk_cuda.cli.arguments import natural, natural_or_none, positive
from rdk_cuda.integrations.block_drafters import BlockConfig, BlockNetwork
from rdk_cuda.integrations.eagle3.unrolled import unrolled
from rdk_cuda.integrations.mtp import MtpNetwork
from rdk_cuda.integrations.mtp.checkpoint import published
from rdk_cuda.integrations.mtp.families import family_of
from rdk_cuda.integrations.mtp.network import layer_config
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.loading import quiet

PATTERN = ["linear_attention"] * 3 + ["full_attention"]
HEAD_BATCH, HEAD_TOKENS, DEPTHS = 8, 129, 3
BLOCK, BLOCKS = 5, 8  # tokens of a pass of DFlash, and passes for each text of a batch


def untrained(options: argparse.Namespace) -> Any:
    """The target of the recipe."""
    width = options.hidden
    own = {
        "qwen3_5_text": {
            "layer_types": (PATTERN * options.layers)[: options.layers],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": width // 4,
            "linear_value_head_dim": width // 4,
        },
        "glm4_moe": {
            "first_k_dense_replace": options.layers - 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": width,
        },
    }
    config = AutoConfig.for_model(
        options.model_type,
        **own[options.model_type],
        vocab_size=VOCABULARY_SIZE,
        hidden_size=width,
        intermediate_size=5 * width // 2,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(options.seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


class HybridRun(Run):
    """The demo's training, of another model."""

    def __init__(
        self, model: Any, options: argparse.Namespace, text: Tensor, held_out: Tensor
    ) -> None:
        sizes = options.hidden, 5 * options.hidden // 2, 1, 4
        recipe = Recipe("hybrid", *sizes, options.steps, options.learning_rate, options.seed)
        super().__init__(recipe, text, held_out, options.out.with_suffix(".work"))
        self.use(model)


def trained(
    module: torch.nn.Module, run: Run, steps: int, loss_of: Callable[[Tensor], Tensor]
) -> Iterator[float]:
    """Train a drafter; yields each step's loss, of a batch of texts `[HEAD_BATCH, HEAD_TOKENS]`."""
    recipe = Recipe("head", 0, 0, 1, 1, steps, 2e-3, run.recipe.seed)
    optimizer = build_optimizer(module, recipe)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(recipe.seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = (
            recipe.learning_rate * min((step + 1) / 20, 1 - step / steps)
        )
        starts = torch.randint(len(run.text) - HEAD_TOKENS, (HEAD_BATCH, 1), generator=generator)
        loss = loss_of(run.text[starts + torch.arange(HEAD_TOKENS)])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())
    module.requires_grad_(False)


def divergence(hidden: Tensor, head: Tensor, logits: Tensor) -> Tensor:
    """Compare a drafter's distributions with the target's, in nats a position."""
    log_q, log_p = (hidden @ head.T).log_softmax(-1), logits.log_softmax(-1)
    whole = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="sum")
    return whole / hidden[..., 0].numel()


def head_steps(target: Any, network: MtpNetwork, run: Run, steps: int) -> Iterator[float]:
    """Train the head; the loss is the mean over depths."""
    network.requires_grad_(True)
    network.decoder.get_input_embeddings().requires_grad_(False)
    last, head = target.config.num_hidden_layers, network.lm_head.weight

    def loss_of(ids: Tensor) -> Tensor:
        with torch.no_grad():
            said = target(ids, output_hidden_states=True, use_cache=False)
        losses = []
        for depth, hidden in enumerate(unrolled(network, ids, said.hidden_states[last], DEPTHS)):
            known = hidden.shape[1] - depth  # those behind have no token to be made of
            normed = network.norm(hidden[:, :known])
            losses.append(divergence(normed, head, said.logits[:, 1 + depth :]))
        return torch.stack(losses).mean()

    return trained(network, run, steps, loss_of)


def new_block(target: Any) -> BlockNetwork:
    """Make a DFlash drafter with random weights."""
    text = target.config
    sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"]
    sizes += ["num_key_value_heads", "head_dim", "max_position_embeddings"]
    layer = Qwen3Config(**{name: getattr(text, name) for name in sizes}, num_hidden_layers=2)
    depth, width, size = text.num_hidden_layers, text.hidden_size, text.vocab_size
    states = (2, depth // 2 + 1, depth - 1)
    network = BlockNetwork(BlockConfig(layer, states, width, BLOCK, 0, size))
    head = target.lm_head.weight.detach()
    network.embedding, network.head = target.get_input_embeddings(), head
    return network


def block_steps(target: Any, network: BlockNetwork, run: Run, steps: int) -> Iterator[float]:
    """Train it on blocks that begin at random places of each text."""
    network.requires_grad_(True)
    network.embedding.requires_grad_(False)
    count, block = HEAD_BATCH * BLOCKS, torch.arange(BLOCK)
    rows, places = torch.arange(HEAD_BATCH).repeat_interleave(BLOCKS), torch.arange(HEAD_TOKENS)
    generator = torch.Generator().manual_seed(run.recipe.seed)

    def loss_of(ids: Tensor) -> Tensor:
        with torch.no_grad():
            said = target(ids, output_hidden_states=True, use_cache=False)
        read = torch.cat([said.hidden_states[at] for at in network.config.state_layers], -1)
        first = torch.randint(8, HEAD_TOKENS - BLOCK, (count, 1), generator=generator)
        tokens = torch.full((count, BLOCK), network.config.mask)
        tokens[:, :1] = ids[rows].gather(1, first)
        hidden_from = torch.cat([places >= first, torch.zeros(count, BLOCK).bool()], 1)
        mask = torch.zeros(count, 1, BLOCK, HEAD_TOKENS + BLOCK)
        mask.masked_fill_(hidden_from[:, None, None], torch.finfo(mask.dtype).min)
        positions = torch.cat([places.expand(count, -1), first + block], 1)
        hidden = network(tokens, read[rows], positions, mask, DynamicCache())
        return divergence(hidden, network.head, said.logits[rows[:, None], first + block[:-1]])

    return trained(network, run, steps, loss_of)


def write_block(network: BlockNetwork, folder: Path) -> None:
    """Write it as z-lab publishes DFlash, in float16."""
    folder.mkdir()
    config = network.config
    fields = json.loads(config.layer.to_json_string()) | {"block_size": config.block}
    ids = [at - 1 for at in config.state_layers]
    fields["dflash_config"] = {"target_layer_ids": ids, "mask_token_id": config.mask}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tensors = {
        name: weight.half().contiguous()
        for name, weight in network.state_dict().items()
        if not name.startswith("embedding.")
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def new_head(target: Any) -> MtpNetwork:
    """A head whose layer is the target's last one with attention, and whose map adds its inputs."""
    family, decoder = family_of(target.config.model_type), target.get_decoder()
    assert family is not None
    layer = type(decoder)(layer_config(target, family))
    kinds = getattr(target.config, "layer_types", None) or ["full_attention"] * len(decoder.layers)
    last = max(at for at, kind in enumerate(kinds) if kind == "full_attention")
    layer.layers[0].load_state_dict(decoder.layers[last].state_dict())
    layer.norm.load_state_dict(decoder.norm.state_dict())
    network = MtpNetwork(layer, target, family)
    half = torch.eye(target.config.hidden_size)
    network.fc.weight.copy_(torch.cat([half, half], dim=1))
    return network


def write(target: Any, network: MtpNetwork, folder: Path) -> None:
    """As its family publishes it, in float16."""
    target.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(SHIPPED / "target" / name, folder / name)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {
        name if name.startswith("mtp.") else f"model.{name}": weight
        for name, weight in published(network).items()
    }
    halves = {name: weight.detach().half().contiguous() for name, weight in tensors.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"dtype": "float16"}
    if target.config.model_type == "qwen3_5_text":
        fields["mtp_num_hidden_layers"] = 1
    path.write_text(json.dumps(fields, indent=2) + "\n")


def run(options: argparse.Namespace) -> None:
    """Train both and write them."""
    if options.out.exists():
        raise InputError(f"--out {options.out} exists; name another folder")
    quiet()
    torch.set_num_threads(options.threads)
    options.out.with_suffix(".work").mkdir(parents=True, exist_ok=True)
    tokenizer = obtain_tokenizer(SHIPPED / "target" / "tokenizer.json")
    texts = encode(tokenizer, training_files()), encode(tokenizer, held_out_files())
    training = HybridRun(untrained(options), options, *texts)
    training.train()
    target = training.model.eval()
    target.requires_grad_(False)
    network = new_head(target)
    follow("head", head_steps(target, network, training, options.head_steps))
    write(target, network, options.out)
    if options.block_steps:
        block = new_block(target)
        follow("block", block_steps(target, block, training, options.block_steps))
        write_block(block, options.out / "dflash")


def follow(name: str, losses: Iterator[float]) -> None:
    """Train, and print the loss every few steps."""
    recent = 0.0
    for step, loss in enumerate(losses, 1):
        recent = 0.95 * recent + 0.05 * loss if recent else loss
        if step % 20 == 0:
            print(f"{name}, step {step}: {recent:.3f} nats a token", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.hybrid_target", description=__doc__)
    add = command.add_argument
    sizes = {"hidden": 128, "layers": 8, "steps": 2000, "head-steps": 300, "seed": 1}
    for name, default in (*sizes.items(), ("threads", torch.get_num_threads())):
        add(f"--{name}", type=natural, default=default, metavar="N", help="(%(default)s)")
    add("--model-type", choices=("qwen3_5_text", "glm4_moe"), default="qwen3_5_text")
    add("--block-steps", type=natural_or_none, default=0, metavar="N", help="(no DFlash drafter)")
    add("--learning-rate", type=positive, default=2.5e-3, metavar="R", help="(%(default)s)")
    add("--out", type=Path, required=True, metavar="DIR")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
