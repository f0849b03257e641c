"""Train the demo's two models, a target and its drafter, on the standard library's source.

The models are ordinary Llama models in Hugging Face's format with one byte-level BPE vocabulary.
Training takes a fixed number of steps, about an hour and a half on one CPU core with bfloat16
instructions, and continues from its last checkpoint when it is started again. The text and its
order depend on the interpreter and the seed alone, the last digits of the weights on the machine
too.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from rdk_cuda.files import write_whole

from ..eagle3.distillation import Distillation
from .corpus import held_out_files, read_text, training_files
from .text import byte_level_tokenizer

VOCABULARY_SIZE = 16384
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
MAX_POSITIONS = 1024

CONTEXT = 384
BATCH = 6
WARMUP_STEPS = 200
DECAY_FRACTION = 0.35
WEIGHT_DECAY = 0.1
GRADIENT_NORM = 1.0
CHECKPOINT_STEPS = 250
HELD_OUT_BLOCKS = 48

# Logits of this many positions are held at a time: they stay in the processor's cache, and
# a training step is then 1.5 times as fast.
LOSS_CHUNK = 256


@dataclass(frozen=True)
class Recipe:
    """A model's shape and how it is trained.

    Attributes:
        doublings: steps before which every layer is doubled. A model grown so has cost half as
            much as one that was as deep from the start (progressive stacking, Gong et al. 2019).
    """

    name: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    steps: int
    learning_rate: float
    seed: int
    doublings: tuple[int, ...] = ()


# As many layers as Llama 3.1 8B has, and a drafter of one, as EAGLE's.
TARGET = Recipe("target", 96, 256, 32, 3, 2250, 2.5e-3, seed=1, doublings=(1600, 1750))
DRAFTER = Recipe("drafter", 96, 256, 1, 3, steps=2000, learning_rate=4e-3, seed=2)
# The drafter goes on to learn what the target would say, not what the text says (distillation).
TAUGHT = replace(DRAFTER, name="taught", steps=1000, learning_rate=2e-3, seed=3)


def train(output: Path, *, working_directory: Path) -> None:
    """Train the tokenizer, the target and the drafter; write `output/target` and `output/drafter`.

    Checkpoints are kept in `working_directory`; with the same one, training continues from there.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    working_directory.mkdir(parents=True, exist_ok=True)
    tokenizer = obtain_tokenizer(working_directory / "tokenizer.json")
    training_text = encode(tokenizer, training_files())
    held_out_text = encode(tokenizer, held_out_files())
    texts = training_text, held_out_text, working_directory
    target, drafter = (Run(recipe, *texts) for recipe in (TARGET, DRAFTER))
    for run in (target, drafter):
        run.train()
    taught = Run(TAUGHT, *texts, teacher=target.model)
    taught.model.load_state_dict(drafter.model.state_dict())
    taught.train()
    export(target.model, output / TARGET.name, tokenizer)
    export(taught.model, output / DRAFTER.name, tokenizer)


def obtain_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer at `path`, trained on the training files and written there if absent."""
    if path.is_file():
        return Tokenizer.from_file(str(path))
    texts = map(read_text, training_files())
    tokenizer = byte_level_tokenizer(texts, VOCABULARY_SIZE, [END_OF_TEXT])
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE:
        raise RuntimeError(
            f"the standard library gave a vocabulary of {tokenizer.get_vocab_size()} tokens, not "
            f"{VOCABULARY_SIZE}: too little source is installed; use a complete Python"
        )
    write_whole(path, lambda beside: beside.write_text(tokenizer.to_str(), encoding="utf-8"))
    return tokenizer


def encode(tokenizer: Tokenizer, files: list[Path]) -> Tensor:
    """All files as one stream of tokens, each file between two end-of-text tokens."""
    stream = [END_OF_TEXT_ID]
    for encoding in tokenizer.encode_batch([read_text(path) for path in files]):
        stream += [*encoding.ids, END_OF_TEXT_ID]
    return torch.tensor(stream, dtype=torch.int64, device="cpu")


class Run:
    """One model's training: its state, and the loop.

    With a `teacher` it learns that model's distributions, else the text itself.
    """

    def __init__(
        self,
        recipe: Recipe,
        text: Tensor,
        held_out: Tensor,
        directory: Path,
        teacher: LlamaForCausalLM | None = None,
    ) -> None:
        self.recipe, self.teacher = recipe, teacher
        self.text = text
        self.held_out = held_out
        self.checkpoint = directory / f"{recipe.name}.checkpoint.pt"
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(recipe.seed)
        self.use(build_model(recipe, recipe.layers >> len(recipe.doublings)))
        self.order = lru_cache(maxsize=1)(self.shuffled_starts)
        self.step = 0

    def use(self, model: LlamaForCausalLM) -> None:
        """Train this model from now on."""
        self.model = model.to(self.device)
        self.optimizer = build_optimizer(self.model, self.recipe)

    def train(self) -> None:
        """Take the remaining steps, with a checkpoint every few hundred."""
        self.resume()
        recent = 0.0
        steps = self.recipe.steps
        with tqdm(desc=self.recipe.name, total=steps, initial=self.step) as progress:
            while self.step < steps:
                loss = self.take_step()
                recent = loss if recent == 0.0 else 0.98 * recent + 0.02 * loss
                progress.set_postfix(loss=f"{recent:.3f}", refresh=False)
                progress.update()
                if self.step % CHECKPOINT_STEPS == 0 or self.step == steps:
                    self.save()
                    progress.write(
                        f"{self.recipe.name} step {self.step}: training loss {recent:.3f}, "
                        f"held-out loss {self.held_out_loss():.3f}"
                    )

    def take_step(self) -> float:
        """One optimizer step; returns its loss."""
        if self.step in self.recipe.doublings:
            self.use(doubled(self.model, self.recipe))
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * schedule(self.step, self.recipe)
        loss = self.loss(self.batch(self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    def loss(self, blocks: Tensor) -> Tensor:
        """Mean cross-entropy of each block's tokens after its first, in nats."""
        blocks = blocks.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.model.model(blocks[:, :-1]).last_hidden_state
            if self.teacher is not None:
                with torch.no_grad():
                    final = self.teacher.model(blocks[:, :-1]).last_hidden_state
                head, heads = self.model.lm_head.weight, self.teacher.lm_head.weight.detach()
                states, count = hidden.flatten(0, 1)[None].float(), final.shape[0] * final.shape[1]
                weights = torch.full((1, count), 1 / count, device=self.device)
                every = torch.zeros(len(head), device=self.device)
                taught: Tensor = Distillation.apply(  # type: ignore[no-untyped-call]
                    states, head, final.flatten(0, 1), heads, weights, every
                )
                return taught
        result: Tensor = ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden.flatten(0, 1), self.model.lm_head.weight, blocks[:, 1:].flatten()
        )
        return result

    def batch(self, step: int) -> Tensor:
        """The blocks of one step: an epoch visits every block once, in an order of its own."""
        steps_per_epoch = (len(self.text) // CONTEXT - 2) // BATCH
        epoch, index = divmod(step, steps_per_epoch)
        starts = self.order(epoch)[index * BATCH : (index + 1) * BATCH]
        return self.text[starts[:, None] + torch.arange(CONTEXT + 1, device="cpu")]

    def shuffled_starts(self, epoch: int) -> Tensor:
        """An epoch's block starts, shuffled; the blocks are cut at other places every epoch."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + epoch)
        offset = torch.randint(CONTEXT, (1,), generator=generator, device="cpu")
        blocks = torch.randperm(len(self.text) // CONTEXT - 2, generator=generator, device="cpu")
        return offset + blocks * CONTEXT

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Loss on blocks spread over the held-out text. It is only shown; nothing depends on it."""
        starts = torch.linspace(
            0, len(self.held_out) - CONTEXT - 1, HELD_OUT_BLOCKS, dtype=torch.float32, device="cpu"
        ).long()
        blocks = self.held_out[starts[:, None] + torch.arange(CONTEXT + 1, device="cpu")]
        losses = [self.loss(part).item() for part in torch.split(blocks, BATCH)]
        return sum(losses) / len(losses)

    def fingerprint(self) -> str:
        """Identifies what a checkpoint belongs to: this recipe on this text."""
        digest = hashlib.sha256(self.text.numpy().tobytes())
        digest.update(repr((self.recipe, CONTEXT, BATCH)).encode())
        return digest.hexdigest()

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "step": self.step,
            "fingerprint": self.fingerprint(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        write_whole(self.checkpoint, lambda beside: torch.save(state, beside))

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if not self.checkpoint.is_file():
            return
        state: dict[str, Any] = torch.load(
            self.checkpoint, map_location=self.device, weights_only=True
        )
        if state["fingerprint"] != self.fingerprint():
            raise RuntimeError(
                f"{self.checkpoint} is from another recipe or another Python's standard library: "
                f"delete {self.checkpoint.parent} to start again, or name another directory"
            )
        grown = sum(step < state["step"] for step in self.recipe.doublings)
        for _ in range(grown):
            self.use(doubled(self.model, self.recipe))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def build_model(recipe: Recipe, layers: int) -> LlamaForCausalLM:
    """An untrained model of the recipe's shape, of some layers."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=recipe.hidden_size,
            intermediate_size=recipe.intermediate_size,
            num_hidden_layers=layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=END_OF_TEXT_ID,
            eos_token_id=END_OF_TEXT_ID,
            pad_token_id=END_OF_TEXT_ID,
        )
    )


@torch.no_grad()
def doubled(model: LlamaForCausalLM, recipe: Recipe) -> LlamaForCausalLM:
    """Each layer twice, with half of its contribution: nearly the same function."""
    deeper = build_model(recipe, 2 * len(model.model.layers))
    deeper.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    deeper.model.norm.load_state_dict(model.model.norm.state_dict())
    for at, layer in enumerate(deeper.model.layers):
        layer.load_state_dict(model.model.layers[at // 2].state_dict())
        layer.self_attn.o_proj.weight *= 0.5
        layer.mlp.down_proj.weight *= 0.5
    return deeper


def build_optimizer(model: LlamaForCausalLM, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW; only matrices decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)


def schedule(step: int, recipe: Recipe) -> float:
    """The learning rate's factor: linear warm-up, also of grown layers, constant, linear decay."""
    begun = max((at for at in recipe.doublings if at <= step), default=0)
    warmup = (step - begun + 1) / WARMUP_STEPS
    decay = (recipe.steps - step) / (DECAY_FRACTION * recipe.steps)
    return min(warmup, 1.0, decay)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of `hidden @ weight.T`, its gradient taken chunk by chunk on the way."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        states = hidden.to(torch.bfloat16)
        head = weight.to(torch.bfloat16)
        hidden_gradient = torch.empty_like(states)
        weight_gradient = torch.zeros_like(weight)
        total = torch.zeros((), device=hidden.device, dtype=torch.float32)
        for start in range(0, len(hidden), LOSS_CHUNK):
            part = slice(start, start + LOSS_CHUNK)
            columns = labels[part, None]
            logits = (states[part] @ head.T).float()
            normalisers = logits.logsumexp(dim=-1, keepdim=True)
            total += (normalisers - logits.gather(1, columns)).sum()
            error = (logits - normalisers).exp_()
            error.scatter_add_(1, columns, torch.full_like(normalisers, -1.0))
            error = (error / len(hidden)).to(torch.bfloat16)
            hidden_gradient[part] = error @ head
            weight_gradient += error.T @ states[part]
        ctx.save_for_backward(hidden_gradient.to(hidden.dtype), weight_gradient)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * gradients[0], weight_gradient * gradients[0], None


def export(model: LlamaForCausalLM, directory: Path, tokenizer: Tokenizer) -> None:
    """Write a model in float16, and for the target the tokenizer, as Hugging Face loads them."""
    half = LlamaForCausalLM(model.config).half()  # type: ignore[no-untyped-call]
    half.load_state_dict(model.state_dict())
    half.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=END_OF_TEXT_ID,
    )
    with TemporaryDirectory() as folder:
        unfinished = Path(folder)
        half.save_pretrained(unfinished)
        if directory.name == TARGET.name:
            settings = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT),
                "clean_up_tokenization_spaces": False,
            }
            files = {
                "tokenizer.json": json.loads(tokenizer.to_str()),
                "tokenizer_config.json": settings,
            }
            for name, content in files.items():
                # Compact JSON: nobody reads a vocabulary, and it is half as large.
                text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
                (unfinished / name).write_text(text + "\n", encoding="utf-8")
        directory.mkdir(parents=True, exist_ok=True)
        for file in unfinished.iterdir():
            write_whole(directory / file.name, partial(shutil.copyfile, file))
