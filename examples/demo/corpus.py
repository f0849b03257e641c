"""The demo's text: the running interpreter's own standard library.

It is on every machine that can run the demo, needs no download, and its licence allows it.
"""

import ast
import os
import sysconfig
from pathlib import Path

# Modules of every Python from 3.10 on. The demo's prompts and all its measurements come from
# these, so they are never trained or calibrated on.
HELD_OUT = (
    "argparse.py",
    "calendar.py",
    "configparser.py",
    "contextlib.py",
    "csv.py",
    "filecmp.py",
    "fractions.py",
    "graphlib.py",
    "heapq.py",
    "json/encoder.py",
    "shlex.py",
    "statistics.py",
    "textwrap.py",
    "timeit.py",
)

TEST_DIRECTORIES = frozenset({"test", "tests", "idle_test"})

# Generated tables and other people's packages: nothing in them predicts ordinary source code.
SKIPPED_DIRECTORIES = TEST_DIRECTORIES | {
    "__pycache__",
    "dist-packages",
    "encodings",
    "lib-dynload",
    "pydoc_data",
    "site-packages",
}
SKIPPED_FILES = frozenset({"html/entities.py", "lib2to3/pgen2/conv.py"})
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "test_")


def standard_library() -> Path:
    """The directory of the interpreter's standard library source."""
    directory = Path(sysconfig.get_path("stdlib"))
    if not (directory / HELD_OUT[0]).is_file():
        raise FileNotFoundError(
            f"no standard library source in {directory}: the demo's text is the standard library "
            "itself, so run it with a Python whose library is not zipped or frozen"
        )
    return directory


def training_files() -> list[Path]:
    """Every source file that the demo's models are trained on, sorted."""
    root, names = standard_library(), []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_DIRECTORIES]
        here = Path(folder).relative_to(root)
        names += [(here / file).as_posix() for file in files if file.endswith(".py")]
    return [root / name for name in sorted(names) if is_training_name(name)]


def held_out_files() -> list[Path]:
    """The files that no model and no calibration has seen, sorted."""
    root = standard_library()
    return [root / name for name in HELD_OUT]


def calibration_files(stride: int = 12) -> list[Path]:
    """A spread-out part of the training files, without those that are empty.

    A twelfth is enough text to calibrate an affinity on.
    """
    return [file for file in training_files()[::stride] if file.stat().st_size]


def read_text(path: Path) -> str:
    """A source file's text, with newlines as `\\n`."""
    return path.read_text(encoding="utf-8", errors="replace")


def docstrings(source: str) -> str:
    """The longer docstrings of a source file: prose."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, described)]
    return "\n\n".join(text for text in found if len(text) > 200)


def is_training_name(name: str) -> bool:
    """Whether a file, named relative to the standard library, belongs to the training text."""
    *directories, file = name.split("/")
    if name in HELD_OUT or name in SKIPPED_FILES:
        return False
    if not SKIPPED_DIRECTORIES.isdisjoint(directories):
        return False
    return not any(part.startswith(SKIPPED_PREFIXES) for part in (*directories, file))
