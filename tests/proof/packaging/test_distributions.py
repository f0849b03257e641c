"""What is handed out is whole and holds nothing else: the source distribution and the wheel.

Built from the unpacked source distribution, so a source that it lacks shows.
"""

from __future__ import annotations

import platform
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rdk_cuda

from .distributions import NOT_DISTRIBUTED, ROOT, repository_files, run
from .wheels import OLDEST, platform_tag, tried

pytestmark = pytest.mark.ci

TAG = f"cp310-abi3-linux_{platform.machine()}"
METADATA = f"rdk_cuda-{rdk_cuda.__version__}.dist-info/"
BINARY = "rdk_cuda/_C.abi3.so"


@pytest.fixture(scope="session")
def wheel(built: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what `built` has compiled already, with the same switches."""
    source, _ = built
    folder = tmp_path_factory.mktemp("wheel")
    pip = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    result = run([*pip, "--wheel-dir", str(folder), "."], source)
    assert result.returncode == 0, result.stderr
    (made,) = folder.iterdir()
    return made


def test_the_wheel_asks_for_a_glibc_that_manylinux_2_28_has(wheel: Path) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    assert platform_tag(wheel) == f"manylinux_2_{OLDEST}_{platform.machine()}"


def test_the_source_distribution_has_every_file_of_the_repository(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)  # no links, no devices
        files = [member.name.split("/", 1)[1] for member in archive if member.isfile()]
    generated = {"PKG-INFO", "setup.cfg"} | {f for f in files if f.startswith("rdk_cuda.egg-info/")}
    assert len(files) == len(set(files))
    assert set(files) - generated == repository_files() - NOT_DISTRIBUTED


def origin(name: str, tracked: set[str]) -> str | None:
    """The repository's file that a file of the wheel is, or is a copy of inside of the package."""
    for candidate in (name, name.removeprefix("rdk_cuda/")):
        if candidate in tracked:
            return candidate
    return None


def test_the_wheel_has_the_package_its_data_and_nothing_else(wheel: Path) -> None:
    """At most 1 MB: the demo and its models stay in the repository, and so do the tests."""
    assert wheel.name == f"rdk_cuda-{rdk_cuda.__version__}-{TAG}.whl"
    assert wheel.stat().st_size <= 1.1e6
    tracked = repository_files()
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    package = {name for name in tracked if name.startswith("rdk_cuda/")}
    assert {"rdk_cuda/py.typed", "rdk_cuda/_C.pyi"} <= package
    assert package | {BINARY} <= set(files)
    for name, content in files.items():
        if name != BINARY and not name.startswith(METADATA):
            own = origin(name, tracked)
            assert own is not None, f"{name} is in the wheel, but not in the repository"
            assert content == (ROOT / own).read_bytes(), name
    assert files[f"{METADATA}licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_says_what_it_is_and_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        built_as = archive.read(f"{METADATA}WHEEL").decode()
        metadata = Parser().parsestr(archive.read(f"{METADATA}METADATA").decode())
    assert f"Tag: {TAG}\n" in built_as
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    needed = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert sorted(Requirement(need).name for need in needed) == ["numpy", "safetensors", "torch"]


def test_it_installs_in_a_fresh_environment(wheel: Path) -> None:
    """One that has torch and what torch needs, but no rdk_cuda, no sources and no compiler."""
    tried(wheel)
