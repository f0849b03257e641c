"""Where hypothesis is not installed, only the tests that it would drive are skipped.

A machine with a GPU may have no package index; importing this module is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest


class Strategies(ModuleType):
    """Any strategy of any arguments, and decorators of strategies: nothing is drawn from them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: self


class Settings:
    register_profile = load_profile = staticmethod(lambda *arguments, **named: None)


def given(*strategies: Any, **named: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    def skipped(test: Callable[..., None]) -> Callable[[], None]:
        def without_hypothesis() -> None:
            pytest.skip("hypothesis is not installed")

        without_hypothesis.__name__ = test.__name__
        return without_hypothesis

    return skipped


def install() -> None:
    module = ModuleType("hypothesis")
    strategies = Strategies("hypothesis.strategies")
    vars(module).update(given=given, settings=Settings, strategies=strategies)
    sys.modules.update({"hypothesis": module, "hypothesis.strategies": strategies})


if find_spec("hypothesis") is None:
    install()
