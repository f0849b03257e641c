"""A pair from local files: its models, and the tokenizer that they share."""

import io
import logging as standard
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from ...files import opened_tensors, system_errors
from ...integrations.eagle3 import CheckpointError, Eagle3Checkpoint, is_checkpoint, read_checkpoint
from ...integrations.huggingface import HuggingFaceModel
from ...integrations.huggingface.placement import named_weight, weight_of
from ...integrations.mtp import is_mtp, read_mtp_checkpoint
from ..errors import INSTALL, InputError
from ..request import Command
from .pairs import ModelPair, Pair, StatePair, TextPair, head_size

NEVER = -30_000.0  # a logit that no probability is left of, in half precision, too
NATIVE = Path("mtp")  # as a drafter: the multi-token head in the target's own files


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
GGUF = ".gguf"
READS_GGUF = ("gguf", "accelerate")  # what Transformers reads such a file with


class ModelFiles(NamedTuple):
    """A directory and, if the weights are in a GGUF file, its name there."""

    directory: Path
    gguf: str | None = None

    @property
    def has_tokenizer(self) -> bool:
        return any((self.directory / name).is_file() for name in TOKENIZER_FILES)

    @property
    def tokenizer_gguf(self) -> str | None:
        return None if self.has_tokenizer else self.gguf


def model_files(option: str, path: Path) -> ModelFiles:
    if path.suffix == GGUF and path.is_file():
        files = ModelFiles(path.parent, path.name)
    elif any(path.glob("*.safetensors")):
        files = ModelFiles(path)
    else:
        found = sorted(file.name for file in path.glob(f"*{GGUF}"))
        if len(found) > 1:
            raise InputError(
                f"{option} {path}: holds {len(found)} GGUF files, as {found[0]}; name one of them"
            )
        files = ModelFiles(path, *found)
    missing = [name for name in READS_GGUF if find_spec(name) is None]
    if files.gguf is not None and missing:
        raise InputError(
            f"{option} {path}: a GGUF file needs {' and '.join(missing)}: {INSTALL.format('gguf')}"
        )
    return files


def weight_files(path: Path) -> list[Path]:
    names = "*.safetensors", "pytorch_model*.bin", f"*{GGUF}"
    return [path] if path.is_file() else sorted(chain.from_iterable(map(path.glob, names)))


def quiet() -> None:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    standard.getLogger("accelerate").setLevel(standard.ERROR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def load_models(request: Command, drafter: Path, *, one_tokenizer: bool = True) -> Pair:
    """Load the target, and a drafter, as the request says."""
    how = request.device, getattr(torch, request.dtype), request.device_map
    return load_pair(request.target, drafter, *how, one_tokenizer=one_tokenizer)


def load_pair(
    target: Path,
    drafter: Path,
    device: str | None = None,
    dtype: torch.dtype = torch.float32,
    device_map: str | None = None,
    *,
    one_tokenizer: bool = True,
) -> Pair:
    """Load two models, each from a directory or a GGUF file, and move them to a device.

    Args:
        dtype: of both. A drafter is saved in the dtype of its files, unless that is a wider one.
        device_map: "auto" spreads the target over all devices, and where these are full the CPU
            and the disk, in place of `device`. The drafter is where the target's embeddings are.
        drafter: `NATIVE`, too.
        one_tokenizer: refuse a drafter with a tokenizer of its own; else it becomes a `TextPair`.
    """
    tokenizer = load_tokenizer("--target", target)
    theirs = None if drafter in (target, NATIVE) else own_tokenizer(drafter)
    difference = "" if theirs is None else difference_of(tokenizer, theirs)
    refuse_device(device or "cpu")
    first = load_model("--target", target, dtype, device_map)
    first = first.to(device or "cpu") if device_map is None else first
    native = drafter == NATIVE or is_mtp(drafter)
    if native or drafter == target:
        refuse_spread_drafter(drafter, first)
    if drafter == target:
        refuse_undecodable("--drafter", drafter, first)
    end = first.generation_config.eos_token_id
    eos = frozenset([] if end is None else [end] if isinstance(end, int) else end)
    # The target's own greedy choice is what the demo compares with: nothing may alter its logits.
    plain = GenerationConfig(eos_token_id=sorted(eos) or None, pad_token_id=0)
    names = str(target), str(drafter)
    shared: dict[str, Any] = {"tokenizer": tokenizer, "names": names}
    if native or is_checkpoint(drafter):
        read = read_mtp_checkpoint if native else read_checkpoint
        checkpoint = load_checkpoint(target if drafter == NATIVE else drafter, first, read)
        pair: Pair = StatePair(first, checkpoint, **shared, drafter_dtype=checkpoint.dtype)
    else:
        second = first if drafter == target else load_model("--drafter", drafter, dtype)
        # Transformers 5.0 refuses to save sampling parameters without do_sample, and -1 for none.
        kept = ("bos_token_id", "eos_token_id", "pad_token_id")
        said = {name: id for name in kept if (id := getattr(second.generation_config, name)) != -1}
        second.generation_config = GenerationConfig(**said)
        second = second.to(first.device)
        stored = stored_dtype(drafter)
        shared["drafter_dtype"] = dtype if stored.itemsize > dtype.itemsize else stored
        if difference and not one_tokenizer:
            refuse_misfit("the drafter's", theirs, head_size(second))
            difference = ""
            with blaming(f"--drafter {drafter}:", TypeError, ValueError):
                pair = TextPair(first, second, **shared, drafter_tokenizer=theirs)
        else:
            fit_head(second, head_size(first))
            pair = ModelPair(first, second, **shared)
    refuse_misfit("the target's", tokenizer, head_size(first))
    if difference:
        raise InputError(f"{difference}; needs two models with one tokenizer")
    first.generation_config = plain
    return pair


def load_checkpoint(
    directory: Path, target: Any, read: Callable[[Path, Any], Eagle3Checkpoint]
) -> Eagle3Checkpoint:
    with blaming("--drafter", CheckpointError, OSError):
        checkpoint = read(directory, target)
    refuse_infinite("--drafter", directory, checkpoint.network)
    return checkpoint


@contextmanager
def blaming(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Say the first line of an error of these kinds behind what it is about."""
    try:
        yield
    except kinds as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{what} {said}") from error


def refuse_infinite(option: str, directory: Path, model: Any) -> None:
    for name, _ in model.named_parameters():
        if not bool(named_weight(model, name).isfinite().all()):
            raise InputError(f"{option} {directory}: {name} has NaN or inf; needs finite weights")


def load_model(
    option: str, directory: Path, dtype: torch.dtype = torch.float32, device_map: str | None = None
) -> Any:
    """Load a causal language model: no network, no pickle, no code of its own."""
    files = model_files(option, directory)
    if files.gguf is None and not (directory / "config.json").is_file():
        reason = "no config.json there" if directory.is_dir() else "no such directory"
        raise InputError(f"{option} {directory}: {reason}; needs a local Hugging Face model")
    with blaming(f"{option} {directory}:", Exception):  # whatever a library of hundreds may raise
        model, report = loaded(files, dtype, device_map)
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise InputError(
            f"{option} {directory}: its files lack {len(missing)} weights of a "
            f"{type(model).__name__}, as {missing[0]}; needs a whole causal language model"
        )
    refuse_infinite(option, directory, model)
    if model.device.type == "meta" or model.get_input_embeddings().weight.is_meta:
        raise InputError(
            f"{option} {directory}: --device-map {device_map} finds no room in memory for its "
            "embeddings; needs more memory, or a smaller --dtype"
        )
    refuse_undecodable(option, directory, model.eval())
    return model


def loaded(
    files: ModelFiles, dtype: torch.dtype, device_map: str | None
) -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {
        "local_files_only": True,
        "use_safetensors": True,
        "dtype": dtype,
        "device_map": device_map,
        "output_loading_info": True,
    }
    if files.gguf is None:
        stored_dtype(files.directory)  # which refuses a file of another size than it says
    progress = redirect_stderr(io.StringIO())  # a bar that quiet() does not reach
    if files.gguf is not None:
        options["gguf_file"] = files.gguf
        if hasattr(transformers, "GgufConfig"):
            # Unpacked: to keep the weights packed, the library would fetch kernels.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with nullcontext() if files.gguf is None else progress:
        model, report = AutoModelForCausalLM.from_pretrained(
            files.directory, trust_remote_code=False, **options
        )
    if files.gguf is not None and getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)  # it is a plain model now
    return model, report


def stored_dtype(directory: Path) -> torch.dtype:
    """The dtype of a model's files; float32 for more than one, and for all others than halves."""
    dtypes, whole = set(), directory / "model.safetensors"
    for file in [whole] if whole.is_file() else directory.glob("model-*-of-*.safetensors"):
        with opened_tensors(file) as content:
            dtypes |= {content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
    halves = {"BF16": torch.bfloat16, "F16": torch.float16}
    return halves.get(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float32


def load_tokenizer(option: str, directory: Path) -> Any:
    """The tokenizer in a directory; that of a GGUF file, if none lies next to it."""
    files = model_files(option, directory)
    if not files.directory.is_dir() or (files.gguf is None and directory.is_file()):
        raise InputError(f"{option} {directory}: no such directory")
    if files.gguf is None and not files.has_tokenizer:
        raise InputError(f"{option} {directory}: holds no tokenizer, as tokenizer.json")
    with blaming(f"{option} {directory}:", Exception):
        where = {"gguf_file": files.tokenizer_gguf, "local_files_only": True}
        return AutoTokenizer.from_pretrained(files.directory, trust_remote_code=False, **where)


def fit_head(drafter: Any, size: int) -> None:
    """Give a drafter the width of a target of its family, whose heads are padded to another one.

    Rows that the target lacks go. Those that it has more are zeros, with a bias that lets no draft
    be one of them; a model that is saved and loaded again may lose its bias, but not the zeros.
    """
    own = head_size(drafter)
    if own == size:
        return
    if abs(own - size) > max(own, size) // 100:
        raise InputError(
            f"the target predicts {size} tokens and the drafter {own}; needs two models "
            "with one vocabulary"
        )
    drafter.resize_token_embeddings(size, mean_resizing=False)
    head = drafter.get_output_embeddings()
    if own < size:
        head.weight.data[own:] = 0
        bias = head.weight.new_zeros(size) if head.bias is None else head.bias.detach().clone()
        bias[own:] = NEVER
        head.bias = torch.nn.Parameter(bias)


def refuse_misfit(whose: str, tokenizer: Any, size: int) -> None:
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    if (last := max(set(tokenizer.get_vocab().values()) - special, default=0)) >= size:
        raise InputError(
            f"{whose} tokenizer has {last + 1} tokens, its model predicts {size}; needs a "
            "tokenizer that belongs to the model"
        )


def own_tokenizer(drafter: Path) -> Any:
    """The tokenizer that lies with a drafter; None if there is none, and it is the target's."""
    files = model_files("--drafter", drafter)
    if files.gguf is None and not files.has_tokenizer:
        return None
    return load_tokenizer("--drafter", drafter)


def difference_of(tokenizer: Any, drafter_tokenizer: Any) -> str:
    """In how many tokens they differ, and one of these; empty if they do not."""
    ours, theirs = tokenizer.get_vocab(), drafter_tokenizer.get_vocab()
    different = sorted(
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    )
    if not different:
        return ""
    token = different[0]
    return (
        f"the tokenizers differ in {len(different)} tokens: {token!r} is "
        f"{ours.get(token, 'absent')} in the target's and {theirs.get(token, 'absent')} in the "
        "drafter's"
    )


def refuse_device(device: str) -> None:
    try:
        torch.zeros(1, device=device, dtype=torch.float32).item()
    except (AssertionError, RuntimeError) as error:  # the former from torch without CUDA
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"--device {device}: {said}; needs cpu or cuda") from error


def refuse_spread_drafter(drafter: Path, model: Any) -> None:
    places = set(getattr(model, "hf_device_map", {}).values())
    if len(places) > 1 or "disk" in places:
        raise InputError(
            f"--drafter {drafter}: is the target, which --device-map spreads over "
            f"{', '.join(sorted(map(str, places)))}; needs a drafter that is whole on one device"
        )


def refuse_unsavable(models: Pair, output: Path, copies: int = 1) -> None:
    """Refuse what finds no room, or the library would not write, which it only finds as it does."""
    weights = sum(part.numel() for part in models.network.parameters())
    needed, free = copies * weights * models.drafter_dtype.itemsize, disk_usage(output.parent).free
    if needed > free:
        raise InputError(
            f"--out {output}: {copies} drafter(s) take {needed:,} bytes, and {free:,} are free; "
            "make room, or name another place"
        )
    drafter, (target_name, name) = models.drafter, models.names
    own = getattr(models, "drafter_tokenizer", None)
    parts = [(getattr(drafter, part, None), name) for part in ("config", "generation_config")]
    parts += [(models.tokenizer, name if own is None else target_name), (own, name)]
    with system_errors(output), TemporaryDirectory(prefix=".trial.", dir=output.parent) as folder:
        for part, of in ((part, of) for part, of in parts if part is not None):
            try:
                part.save_pretrained(folder)
            except Exception as error:  # whatever a library of hundreds of architectures may raise
                reason = " ".join(f"{type(part).__name__} cannot be saved: {error}".split())
                option = "--target" if part is models.tokenizer else "--drafter"
                raise InputError(f"{option} {of}: {reason}") from error


def refuse_undecodable(option: str, directory: Path, model: Any) -> None:
    """Only models whose cache rolls back per sequence; of a drafter, whose logits are its head's.

    A target's logits may be scaled or capped, as they are only read.
    """
    head = None if option == "--target" else weight_of(model.get_output_embeddings())
    # The last kind is of shapes in its config.
    with blaming(f"{option} {directory}:", TypeError, ValueError, RuntimeError):
        HuggingFaceModel(model, head=head)
