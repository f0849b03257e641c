"""Old names say where they are now."""

from __future__ import annotations

from importlib import import_module

import pytest

from rdk_cuda.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_says_where_it_is_now_and_there_it_is(old: str) -> None:
    module, _, name = old.rpartition(".")
    for line in (f"from {module} import {name}", f"import {old}"):
        is_module = hasattr(import_module(module), "__path__") or line.startswith("from")
        with pytest.raises(ImportError, match=f"has moved to {MOVED[old]}$" if is_module else ""):
            exec(line)
    module, _, name = MOVED[old].rpartition(".")
    try:
        import_module(MOVED[old])
    except ModuleNotFoundError:
        assert hasattr(import_module(module), name)
