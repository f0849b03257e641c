"""Modules of vLLM's wheel, importable on a machine that has torch and Triton and no vLLM.

`python -m profiling.peers.carried WHEEL` takes them out, into build/engines, 200 KB for the wheel's
hundreds of megabytes. Their other imports, beside each other and Triton, are stand-ins there: good
for kernels and what calls them, and for nothing else.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from ..machine import ROOT

FOLDER = ROOT / "build" / "engines" / "carried"
MODULES = (
    "model_executor/warmup/jit_warmup",
    "model_executor/warmup/jit_warmup_triton_helper",
    "v1/sample/rejection_sampler",
    "v1/spec_decode/fly",
    "v1/spec_decode/utils",
    "v1/watermarking/prfs/philox",
    "v1/worker/gpu/input_batch",
    "v1/worker/gpu/sample/gumbel",
    "v1/worker/gpu/sample/watermark",
    "v1/worker/gpu/spec_decode/rejection_sampler",
    "v1/worker/gpu/spec_decode/rejection_sampler_utils",
)
# As in the wheel, where it also looks for other platforms.
TRITON = """import triton
import triton.language as tl
from triton.language.extra import libdevice as tldevice

HAS_TRITON = True
"""


def carry(wheel: Path, folder: Path = FOLDER) -> None:
    """Write the modules that are in a wheel, and its version."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in (f"vllm/{module}.py" for module in MODULES):
            if name in names:
                archive.extract(name, folder)
    (folder / "vllm" / "triton_utils.py").write_text(TRITON, encoding="utf-8")
    about = f'__version__ = "{wheel.name.split("-")[1]}"\n'
    (folder / "vllm" / "__init__.py").write_text(about, encoding="utf-8")


def importable(folder: Path = FOLDER, instead: bool = False) -> bool:
    """Have `import vllm` find what was carried where there is no vLLM; say whether it finds any.

    Args:
        instead: also where there is one.
    """
    if (instead or find_spec("vllm") is None) and (folder / "vllm").is_dir():
        sys.path.insert(0, str(folder))
        sys.meta_path.append(_StandIns())
    return find_spec("vllm") is not None


class _StandIns(MetaPathFinder, Loader):
    """Finds, last of all, a module of vLLM whose names are all there and do nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = name.startswith("vllm.")
        return spec_from_loader(name, self, is_package=True) if own else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


if __name__ == "__main__":
    carry(Path(sys.argv[1]))
