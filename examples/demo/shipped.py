"""The demo's models: those that the repository ships, which `--train` makes, or the user's."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.loading import load_pair
from rdk_cuda.recipes.inputs.pairs import ModelPair, Pair

SHIPPED = Path(__file__).with_name("models")


class Models(NamedTuple):
    """What the demo runs.

    Attributes:
        pair: the target, and the drafter that is pruned.
        assistant: a whole language model of the same tokens, for Transformers' own assisted
            generation; None if there is none that could make it faster.
    """

    pair: Pair
    assistant: Any


def load_shipped(device: str = "cpu") -> ModelPair:
    """The target, of 32 layers, and the drafter of one, on a device.

    Raises:
        InputError: they are not there.
    """
    target, drafter = SHIPPED / "target", SHIPPED / "drafter"
    if not (target / "config.json").is_file() or not (drafter / "config.json").is_file():
        raise InputError(
            f"the demo's models are not in {SHIPPED}: make them with python -m examples.demo "
            "--train, or name others with --target DIR --drafter DIR"
        )
    pair = load_pair(target, drafter, device)
    assert isinstance(pair, ModelPair)  # which is what the repository ships
    return replace(pair, names=("target", "drafter"))


def load_demo() -> Models:
    """The demo's own."""
    pair = load_shipped()
    return Models(pair, pair.drafter)


def load_two(target: Path, drafter: Path) -> Models:
    """Both from local files; a drafter on the target's states is refused."""
    pair = load_pair(target, drafter)
    if not isinstance(pair, ModelPair):
        raise InputError(f"--drafter {drafter}: drafts on the target's states; needs a model")
    return Models(pair, pair.drafter)
