"""A small hybrid target in Qwen3.5's layout, with a multi-token head of its own in its files.

    python -m studies.hybrid_target --out DIR

The target is a `Qwen3_5ForCausalLM`: three recurrent layers, then one of full attention, twice. It
is trained on the standard library's source, with the demo's tokenizer; then its head, which begins
as its last attention layer, learns the target's distributions along drafts. DIR has both as Qwen
publishes them: `mtp.*` beside `model.*`, in float16.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

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
from rdk_cuda.cli.arguments import natural, positive
from rdk_cuda.integrations.eagle3.unrolled import unrolled
from rdk_cuda.integrations.mtp import FAMILIES, MtpNetwork
from rdk_cuda.integrations.mtp.network import layer_config
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.loading import quiet

PATTERN = ["linear_attention"] * 3 + ["full_attention"]
HEAD_BATCH, HEAD_TOKENS, DEPTHS = 8, 129, 3


def untrained(options: argparse.Namespace) -> Any:
    """The target of the recipe."""
    width = options.hidden
    config = AutoConfig.for_model(
        "qwen3_5_text",
        vocab_size=VOCABULARY_SIZE,
        hidden_size=width,
        intermediate_size=5 * width // 2,
        num_hidden_layers=options.layers,
        layer_types=(PATTERN * options.layers)[: options.layers],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=width // 4,
        linear_value_head_dim=width // 4,
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


def head_steps(target: Any, network: MtpNetwork, run: Run, steps: int) -> Iterator[float]:
    """Train the head; yields each step's loss, the mean KL divergence in nats over depths."""
    recipe = Recipe("head", 0, 0, 1, 1, steps, 2e-3, run.recipe.seed)
    network.requires_grad_(True)
    network.decoder.get_input_embeddings().requires_grad_(False)
    optimizer = build_optimizer(network, recipe)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(recipe.seed)
    last, head = target.config.num_hidden_layers, network.lm_head.weight
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = (
            recipe.learning_rate * min((step + 1) / 20, 1 - step / steps)
        )
        starts = torch.randint(len(run.text) - HEAD_TOKENS, (HEAD_BATCH, 1), generator=generator)
        ids = run.text[starts + torch.arange(HEAD_TOKENS)]
        with torch.no_grad():
            said = target(ids, output_hidden_states=True, use_cache=False)
        losses = []
        for depth, hidden in enumerate(unrolled(network, ids, said.hidden_states[last], DEPTHS)):
            known = hidden.shape[1] - depth  # those behind have no token to be made of
            log_q = (network.norm(hidden[:, :known]) @ head.T).log_softmax(-1)
            log_p = said.logits[:, 1 + depth :].log_softmax(-1)
            losses.append(
                torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="sum")
            )
            losses[-1] = losses[-1] / (HEAD_BATCH * known)
        loss = torch.stack(losses).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())
    network.requires_grad_(False)


def new_head(target: Any) -> MtpNetwork:
    """A head whose layer is the target's last one with attention, and whose map adds its inputs."""
    family, decoder = FAMILIES["Qwen3-Next"], target.get_decoder()
    layer = type(decoder)(layer_config(target, family))
    kinds = target.config.layer_types
    last = max(at for at, kind in enumerate(kinds) if kind == "full_attention")
    layer.layers[0].load_state_dict(decoder.layers[last].state_dict())
    layer.norm.load_state_dict(decoder.norm.state_dict())
    network = MtpNetwork(layer, target, family)
    half = torch.eye(target.config.hidden_size)
    network.fc.weight.copy_(torch.cat([half, half], dim=1))
    return network


def write(target: Any, network: MtpNetwork, folder: Path) -> None:
    """As Qwen publishes it, in float16."""
    target.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(SHIPPED / "target" / name, folder / name)
    tensors = load_file(folder / "model.safetensors")
    names = {
        "embedding_norm": "pre_fc_norm_embedding",
        "state_norm": "pre_fc_norm_hidden",
        "fc": "fc",
        "norm": "norm",
    }
    for own, name in names.items():
        tensors[f"mtp.{name}.weight"] = network.get_submodule(own).weight
    for name, weight in network.decoder.layers[0].state_dict().items():
        tensors[f"mtp.layers.0.{name}"] = weight
    halves = {name: weight.detach().half().contiguous() for name, weight in tensors.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"mtp_num_hidden_layers": 1, "dtype": "float16"}
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
    network, recent = new_head(target), 0.0
    for step, loss in enumerate(head_steps(target, network, training, options.head_steps), 1):
        recent = 0.95 * recent + 0.05 * loss if recent else loss
        if step % 20 == 0 or step == options.head_steps:
            print(f"head, step {step}: {recent:.3f} nats a token", flush=True)
    write(target, network, options.out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m studies.hybrid_target", description=__doc__)
    add = command.add_argument
    sizes = {"hidden": 128, "layers": 8, "steps": 2000, "head-steps": 300, "seed": 1}
    for name, default in (*sizes.items(), ("threads", torch.get_num_threads())):
        add(f"--{name}", type=natural, default=default, metavar="N", help="(%(default)s)")
    add("--learning-rate", type=positive, default=2.5e-3, metavar="R", help="(%(default)s)")
    add("--out", type=Path, required=True, metavar="DIR")
    return run_command(command, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
