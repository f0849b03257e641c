"""A serving engine whose version was not tested is refused, unless it is asked for."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

ANY_VERSION = "RDK_ANY_ENGINE_VERSION"


class UnknownEngineError(RuntimeError):
    """The installed engine is not one that the adapter was tested with."""


def refuse_untested(engine: str, packages: tuple[str, ...], tested: tuple[str, ...]) -> None:
    """Compare the installed version with those that tests/engines has checked.

    Args:
        engine: its name, for the message.
        packages: the distributions it may be installed as.
        tested: their versions, without what follows a plus.

    Raises:
        UnknownEngineError: another version, and `RDK_ANY_ENGINE_VERSION` is not set to 1.
    """
    installed = [found for name in packages if (found := _version_of(name)) is not None]
    if os.environ.get(ANY_VERSION) == "1" or any(v.split("+")[0] in tested for v in installed):
        return
    raise UnknownEngineError(
        f"rdk_cuda was tested with {engine} {' and '.join(tested)}; installed is "
        f"{installed[0] if installed else 'none that pip knows'}. Install a tested version, or set "
        f"{ANY_VERSION}=1 to try this one"
    )


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
