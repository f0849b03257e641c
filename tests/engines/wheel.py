"""A published wheel, of which nothing is installed or imported."""

from __future__ import annotations

import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def downloaded(engine: str, version: str) -> Path | None:
    """The wheel that the Makefile downloads; None where it has not."""
    return next(iter((ROOT / f".{engine}").glob(f"{engine}-{version}-*.whl")), None)


class Sources:
    """The text of a wheel's modules, by dotted name."""

    def __init__(self, wheel: Path) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self._names = set(self._archive.namelist())

    def __call__(self, module: str) -> str | None:
        path = module.replace(".", "/")
        for name in (f"{path}.py", f"{path}/__init__.py"):
            if name in self._names:
                return self._archive.read(name).decode()
        return None
