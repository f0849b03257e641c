"""What the check of an engine's sources says about calls and kinds of names."""

from __future__ import annotations

import pytest

from tests.engines.engine_sources import Hook, differences, installed_source

SOURCE = """
class Worker:
    steps: int

    def draft(self, batch):
        def inner():
            return ops.sample(batch)
        return [inner(), finish(batch)]

def verify(batch, *, mask=None): ...
"""


def found(hook: Hook, text: str = SOURCE) -> list[str]:
    return differences((hook,), {"engine": text}.get)


def test_what_is_called_is_found_by_the_last_part_of_its_name() -> None:
    assert found(Hook("engine", "Worker.draft", calls=("sample", "finish", "inner"))) == []


@pytest.mark.parametrize("name", ["sample", "finish"])
def test_what_is_no_longer_called_is_named(name: str) -> None:
    hook = Hook("engine", "Worker.draft", ("self", "batch"), calls=("sample", "finish"))
    changed = SOURCE.replace(f"{name}(", "other(")
    assert found(hook, changed) == [f"engine.Worker.draft does not call {name}"]


def test_any_parameters_will_do_where_none_are_given() -> None:
    assert found(Hook("engine", "Worker.draft", calls=("finish",))) == []
    hook = Hook("engine", "verify", ("mask",))
    assert found(hook) == ["engine.verify takes (batch, mask) and not (mask)"]


@pytest.mark.parametrize(
    ("signature", "goes_on"),
    [
        ("batch, *, mask=None", True),
        ("batch, mask=None", True),
        ("batch, mask=None, *, kept=(), tokens=0", True),
        ("batch, mask", False),
        ("batch, *, mask", False),
        ("mask, batch", False),
        ("mask=None, batch=None", False),  # what is passed by its place would be another
        ("batch, *, mask=None, kept", False),
    ],
)
def test_what_is_added_with_a_default_behind_the_others_is_no_difference(
    signature: str, goes_on: bool
) -> None:
    text = f"def verify({signature}): ..."
    assert (found(Hook("engine", "verify", ("batch",)), text) == []) == goes_on
    # To what stands in its place, the engine may pass it.
    assert found(Hook("engine", "verify", ("batch",), replaced=True), text) != []


def test_a_function_in_the_place_of_a_class_is_named_and_the_other_way_round() -> None:
    assert found(Hook("engine", "verify", None, ("steps",))) == ["engine.verify is a function"]
    assert found(Hook("engine", "Worker", ("self",))) == ["engine.Worker is a class"]
    assert found(Hook("engine", "Worker", None, ("steps", "draft"))) == []


def test_the_source_of_what_is_installed_is_read_without_importing_it() -> None:
    text = installed_source("rdk_cuda.integrations.vllm.worker")
    assert text is not None
    assert "class CPUWorker" in text
    assert installed_source("rdk_cuda.nonsense.at_all") is None
