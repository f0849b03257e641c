"""The two models that the repository ships, which `--train` makes."""

from dataclasses import replace
from pathlib import Path

from rdk_cuda.cli.errors import InputError
from rdk_cuda.cli.models import Models, load_models

SHIPPED = Path(__file__).with_name("models")


def load_shipped(device: str = "cpu") -> Models:
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
    return replace(load_models(target, drafter, device), names=("target", "drafter"))
