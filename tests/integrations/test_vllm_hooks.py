"""A vLLM that lacks a hook, or has another one in its place, is found by its sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rdk_cuda.integrations.vllm import hooks
from rdk_cuda.integrations.vllm.hooks import Hook, differences

HOOKS = (
    Hook("engine.runner", "Runner", None, ("batch", "draft", "kept", "counts")),
    Hook("engine.runner", "Runner._sample", ("self", "logits", "metadata")),
    Hook("engine.ops", "apply", ("logits", "k")),
)
RUNNER = """
class Runner:
    counts: int

    def __init__(self):
        self.batch, self.kept = 1, 2

    @property
    def draft(self): ...

    def _sample(self, logits, *, metadata): ...
"""
OPS = "def apply(logits, k=None): ..."


def found(runner: str = RUNNER, ops: str | None = OPS) -> list[str]:
    return differences(HOOKS, {"engine.runner": runner, "engine.ops": ops}.get)


def test_what_is_there_is_found() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class Runner", "class Other", ["has no Runner", "has no Runner._sample"]),
        ("def _sample", "def sample", ["engine.runner has no Runner._sample"]),
        ("metadata", "meta", ["takes (self, logits, meta) and not (self, logits, metadata)"]),
        ("self, logits", "logits, self", ["takes (logits, self, metadata) and not"]),
        ("self.batch", "other.batch", ["engine.runner.Runner has no batch"]),
        ("self.kept", "self.lost", ["engine.runner.Runner has no kept"]),
        ("counts: int", "", ["engine.runner.Runner has no counts"]),
        ("def draft", "def drafts", ["engine.runner.Runner has no draft"]),
    ],
)
def test_what_differs_is_named(old: str, new: str, said: list[str]) -> None:
    changed = found(RUNNER.replace(old, new))
    assert len(changed) == len(said)
    assert all(part in whole for part, whole in zip(said, changed, strict=True))


def test_a_module_that_is_gone_is_named() -> None:
    assert found(ops=None) == ["there is no engine.ops"]


def test_without_a_known_vllm_the_refusal_names_the_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hooks, "_installed_source", lambda module: None)
    with pytest.raises(hooks.UnknownEngineError, match=re.escape(", ".join(hooks.KNOWN))):
        hooks.refuse_unknown(hooks.CPU)
    with pytest.raises(hooks.UnknownEngineError) as refused:
        hooks.refuse_unknown(hooks.GPU_V2)
    assert f"knows model runner V2 of vLLM {', '.join(hooks.KNOWN_V2)};" in str(refused.value)
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in str(refused.value)


def test_every_function_with_one_of_ours_in_its_place_is_checked_to_the_last_parameter() -> None:
    """Those of ours that pass on whatever they get need no check."""
    ours = {
        inside.name
        for path in Path(hooks.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for inside in node.body
        if isinstance(inside, ast.FunctionDef) and not inside.args.vararg
    } - {"__init__"}
    named = {
        hook.name: hook.replaced
        for hook in (*hooks.CPU_V2, *hooks.CPU)
        if hook.parameters and hook.name.rpartition(".")[2] in ours
    }
    assert len(named) > 10
    # The runners stay vLLM's own.
    lax = {name for name, replaced in named.items() if not replaced}
    assert {name for name in lax if not name.startswith("GPUModelRunner.")} == set()
