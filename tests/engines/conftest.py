"""Tests of vLLM run where it is installed, as `make test-vllm` does it in its own environment.

An engine takes seconds to start, so there is one of each. What plain vLLM says is recorded first.
With VLLM_USE_V2_MODEL_RUNNER=1 those run that model runner V2 has, with interpreted kernels.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .interpreter import V2, interpret

_ALL = {path.name for path in Path(__file__).parent.glob("test_*.py")}
_IN_V2 = "calls", "native", "operator", "preemption", "runner_v2", "tokenizers", "traffic", "worker"
_WITH_V2 = {f"test_vllm_{name}.py" for name in _IN_V2}

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_vllm_*.py"]
elif V2:
    collect_ignore = sorted(_ALL - _WITH_V2)
    interpret()
else:
    collect_ignore = ["test_vllm_runner_v2.py"]


@pytest.fixture(scope="session")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated directories; those of RDK_ENGINE_DRAFTERS if it names a folder, to save time."""
    from .drafters import calibrated_drafters

    given = os.environ.get("RDK_ENGINE_DRAFTERS")
    return calibrated_drafters(Path(given) if given else tmp_path_factory.mktemp("drafters"))


@pytest.fixture(scope="session")
def runner() -> dict[str, int]:
    """Options with which prefills are chunked."""
    return {"max_num_seqs": 64, "max_num_batched_tokens": 512}


@pytest.fixture(scope="session")
def plain(runner: dict[str, int]) -> dict[str, Any]:
    """What vLLM without speculation says to each job."""
    from .engine import Engine
    from .jobs import record

    engine = Engine(**runner)
    said = record(engine)
    engine.close()
    return said
