"""One build for all tests of building: of the source distribution, as it is unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from .distributions import (
    copy_repository,
    run,
    source_distribution,
    unpacked,
)


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    copy_repository(repository)
    return source_distribution(repository, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def source(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(sdist, tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def built(source: Path) -> tuple[Path, str]:
    """The folder after `build_ext --inplace`, and what that said."""
    result = run(["setup.py", "build_ext", "--inplace"], source)
    assert result.returncode == 0, result.stderr
    return source, result.stderr
