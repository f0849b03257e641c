"""Public names have docstrings: each `__all__` of a package, and the members of its classes."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import rdk_cuda

PACKAGES = [
    "rdk_cuda",
    *(each.name for each in pkgutil.walk_packages(rdk_cuda.__path__, "rdk_cuda.") if each.ispkg),
]


def undocumented(package: ModuleType) -> Iterator[str]:
    """What `__all__` names, functions and classes and their public members, without a docstring.

    A member that overrides another has that one's.
    """
    for name in getattr(package, "__all__", ()):
        value: Any = inspect.getattr_static(package, name, None)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        generated = f"{name}("  # by `dataclass` and `NamedTuple`
        if not value.__doc__ or value.__doc__.startswith(generated):
            yield name
        if inspect.isclass(value):
            for member, each in vars(value).items():
                kinds = (property, classmethod, staticmethod)
                callable_ = inspect.isfunction(each) or isinstance(each, kinds)
                if member.startswith("_") or not callable_:
                    continue
                if getattr(value, "_is_protocol", False) and isinstance(each, property):
                    continue  # an attribute, which the class describes
                if not inspect.getdoc(getattr(value, member)):
                    yield f"{name}.{member}"


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_docstrings(package: str) -> None:
    assert list(undocumented(import_module(package))) == []


def test_a_name_without_one_would_be_found() -> None:
    class Documented:
        """Says something."""

        def silent(self) -> None:
            pass

    def bare() -> None:
        pass

    package: Any = ModuleType("package")
    package.__all__ = ["Documented", "bare"]
    package.Documented, package.bare = Documented, bare
    assert list(undocumented(package)) == ["Documented.silent", "bare"]
