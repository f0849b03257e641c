"""The repository's files, the source distribution made of them, and commands run in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
# What only a checkout needs.
NOT_DISTRIBUTED = {".ci/run", ".gitignore"}
# Where git cannot tell: names that no file of the repository has.
NEVER = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "*.egg-info", "*.so")


def run(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def repository_files() -> set[str]:
    """Paths of all files that are tracked, or would be after `git add`."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "-z"]
    listed = subprocess.run(
        [*git, "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        names = set(listed.stdout.rstrip("\0").split("\0"))
        return {name for name in names if (ROOT / name).is_file()}
    found = set()
    for folder, folders, files in os.walk(ROOT):
        top = Path(folder) == ROOT
        ignored = NEVER(folder, [*folders, *files]) | (
            {"build", "dist", "demo-output"} if top else set()
        )
        folders[:] = [name for name in folders if name not in ignored]
        found |= {str((Path(folder) / name).relative_to(ROOT)) for name in set(files) - ignored}
    return found


def copy_repository(folder: Path) -> None:
    """What a clone would be, so that no build writes into the checkout."""
    for name in repository_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def source_distribution(repository: Path, folder: Path) -> Path:
    """The archive that `setup.py sdist` makes."""
    result = run(["setup.py", "-q", "sdist", "--dist-dir", str(folder)], repository)
    assert result.returncode == 0, result.stderr
    (archive,) = folder.glob("*.tar.gz")
    return archive


def unpacked(archive: Path, folder: Path) -> Path:
    """The one folder in it."""
    with tarfile.open(archive) as files:
        # Python 3.10 and 3.11 have the filter from a patch release on.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        files.extractall(folder, **safe)
    (source,) = folder.iterdir()
    return source


def environment_with(wheel: Path, folder: Path) -> Path:
    """The Python of a fresh environment that has torch, what torch needs, and this wheel."""
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "lib" / version / "site-packages"
    # A path that comes after the environment's own: an rdk_cuda next to torch stays hidden.
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    result = run([*pip, str(wheel)], folder)
    assert result.returncode == 0, result.stderr
    return python
