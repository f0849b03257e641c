"""A pretrained drafter that the target's states steer."""

from .saved import generate_from, load_steered, save_steered
from .steering import SteeredModel, Steering, steered_read

__all__ = [
    "SteeredModel",
    "Steering",
    "generate_from",
    "load_steered",
    "save_steered",
    "steered_read",
]
