"""A serving engine whose version was not tested is refused, unless it is asked for."""

from __future__ import annotations

import logging
import os
from importlib.metadata import PackageNotFoundError, version

ANY_VERSION = "RDK_ANY_ENGINE_VERSION"


class UnknownEngineError(RuntimeError):
    """The installed engine is not one that the adapter was tested with."""


def refuse_untested(engine: str, packages: tuple[str, ...], tested: tuple[str, ...]) -> None:
    """Compare the installed version with those that tests/engines has checked.

    Another one that is asked for is accepted with a warning in the log.

    Args:
        engine: its name, for the message.
        packages: the distributions it may be installed as.
        tested: their versions, without what follows a plus.

    Raises:
        UnknownEngineError: another version, and `RDK_ANY_ENGINE_VERSION` is not set to 1.
    """
    installed = [found for name in packages if (found := _version_of(name)) is not None]
    if any(v.split("+")[0] in tested for v in installed):
        return
    found = (
        f"rdk_cuda was tested with {engine} {' and '.join(tested)}; installed is "
        f"{installed[0] if installed else 'none that pip knows'}"
    )
    if os.environ.get(ANY_VERSION) != "1":
        raise UnknownEngineError(
            f"{found}. Install a tested version, or set {ANY_VERSION}=1 to try this one"
        )
    logging.getLogger(__name__).warning("%s, which %s=1 accepts", found, ANY_VERSION)


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
