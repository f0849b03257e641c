"""The hooks are in the published wheel, which is what is installed here."""

from __future__ import annotations

import pytest

from rdk_cuda.integrations.vllm import hooks

FUNCTIONS = {hook.name: hook for hook in (*hooks.CPU, *hooks.CPU_V2) if hook.parameters}


@pytest.mark.parametrize("of_runner", [hooks.CPU, hooks.CPU_V2], ids=["V1", "V2"])
def test_the_wheel_is_of_a_known_version_and_has_every_hook(
    of_runner: tuple[hooks.Hook, ...],
) -> None:
    assert hooks._installed_version() in hooks.KNOWN
    assert hooks.differences(of_runner, hooks._installed_source) == []
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
