"""Tests of vLLM run where it is installed, as `make test-vllm` does it in its own environment.

An engine takes seconds to start, so there is one of each. What plain vLLM says is recorded first.
With VLLM_USE_V2_MODEL_RUNNER=1 only those of model runner V2 run, with interpreted kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .interpreter import V2, interpret

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_vllm_*.py"]
elif V2:
    collect_ignore_glob = ["test_sglang_*.py", "test_vllm_[!r]*.py"]
    interpret()
else:
    collect_ignore_glob = ["test_vllm_runner_v2.py"]

if TYPE_CHECKING:
    from .engine import Engine


@pytest.fixture(scope="session")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated directories; those of RDK_ENGINE_DRAFTERS if it names a folder, to save time."""
    from .drafters import calibrated_drafters

    given = os.environ.get("RDK_ENGINE_DRAFTERS")
    return calibrated_drafters(Path(given) if given else tmp_path_factory.mktemp("drafters"))


@pytest.fixture(scope="session")
def plain() -> dict[str, Any]:
    """What vLLM without speculation says to each job."""
    from .engine import Engine
    from .jobs import record

    engine = Engine()
    said = record(engine)
    engine.close()
    return said


@pytest.fixture(scope="session")
def engine(plain: dict[str, Any], drafters: Path) -> Iterator[Engine]:
    """vLLM with our worker; a test says which drafter it uses."""
    from .engine import WORKER, Engine

    ours = Engine(drafters / "model", WORKER, drafters / "virtual-6.25")
    yield ours
    ours.close()
