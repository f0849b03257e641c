"""Two language models for the demo: those that the repository ships, which `--train` makes."""

from dataclasses import replace
from pathlib import Path

from rdk_cuda.pair.errors import InputError
from rdk_cuda.pair.loading import load_pair
from rdk_cuda.pair.pairs import ModelPair

SHIPPED = Path(__file__).with_name("models")


def load_shipped(device: str = "cpu") -> ModelPair:
    """Both, on a device.

    Raises:
        InputError: they are not there.
    """
    target, drafter = SHIPPED / "target", SHIPPED / "drafter"
    if not (target / "config.json").is_file() or not (drafter / "config.json").is_file():
        raise InputError(
            f"the demo's models are not in {SHIPPED}: make them with python -m examples.demo "
            "--train, or name others with --target DIR --drafter DIR"
        )
    return replace(load_two(target, drafter, device), names=("target", "drafter"))


def load_two(target: Path, drafter: Path, device: str | None = None) -> ModelPair:
    """Both from local files; a drafter on the target's states is refused."""
    pair = load_pair(target, drafter, device)
    if not isinstance(pair, ModelPair):
        raise InputError(f"--drafter {drafter}: drafts on the target's states; needs a model")
    return pair
