"""An editable install is found from every folder, also the one above a clone named rdk_cuda."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import rdk_cuda

from .distributions import copy_repository, environment_with, run

pytestmark = pytest.mark.night

# `pip install -e` without the minute of a compiler: the binary is the one of these tests.
EDITABLE_WHEEL = """
import pathlib, runpy, shutil, sys
from torch.utils.cpp_extension import BuildExtension
binary, folder = sys.argv[1:]
def build_extensions(self):
    target = pathlib.Path(self.get_ext_fullpath(self.extensions[0].name))
    target.parent.mkdir(parents=True)
    shutil.copyfile(binary, target)
BuildExtension.build_extensions = build_extensions
sys.argv = ["setup.py", "-q", "editable_wheel", "--dist-dir", folder]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone named as the package."""
    folder = tmp_path_factory.mktemp("above") / "rdk_cuda"
    folder.mkdir()
    copy_repository(folder)
    return folder


@pytest.fixture(scope="module")
def python(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with torch, in which the clone is installed with `pip install -e`."""
    made = tmp_path_factory.mktemp("editable")
    binary = Path(rdk_cuda.__file__).with_name("_C.abi3.so")
    result = run(["-c", EDITABLE_WHEEL, str(binary), str(made)], clone, RDK_CUDA="off")
    assert result.returncode == 0, result.stderr
    (wheel,) = made.glob("*.whl")
    return environment_with(wheel, made)


IMPORT = "from rdk_cuda import Affinity\nimport rdk_cuda\nprint(rdk_cuda.__file__)\n"


@pytest.mark.parametrize("where", ["above the clone", "in the clone", "elsewhere"])
@pytest.mark.parametrize("how", ["-c", "script", "-m"])
def test_an_editable_install_is_imported(
    where: str, how: str, clone: Path, python: Path, tmp_path: Path
) -> None:
    folder = {"above the clone": clone.parent, "in the clone": clone, "elsewhere": tmp_path}[where]
    script = folder / "import_it.py"
    script.write_text(IMPORT)
    command = {"-c": ["-c", IMPORT], "script": [script.name], "-m": ["-m", "rdk_cuda", "--help"]}
    done = subprocess.run([python, *command[how]], cwd=folder, capture_output=True, text=True)
    script.unlink()
    assert done.returncode == 0, done.stderr
    if how == "-m":
        assert "python -m rdk_cuda" in done.stdout
    else:
        assert Path(done.stdout.strip()) == clone / "rdk_cuda" / "__init__.py"
