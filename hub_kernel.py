"""Writes rdk_cuda as a kernel for Hugging Face's Hub: `make hub-kernel HUB_KERNEL=DIR`.

DIR/build/VARIANT has the package as it is built in this checkout, without commands and labs, and
DIR/README.md is its card. The copy has a namespace of its own in torch.ops, made from what is in
it, so that it can be loaded beside an installed rdk_cuda, or beside another version of itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import build_kernels as kernels

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "rdk_cuda"
LEFT_OUT = shutil.ignore_patterns("__pycache__", "__main__.py", "cli", "labs")
CARD = """\
---
license: apache-2.0
tags: [kernels]
---

# rdk_cuda

Lossless speculative sampling with reduced-vocabulary drafters (arXiv:2506.03206): drafter softmax,
affinity redistribution and residual rejection sampling, each one launch.

```python
import torch
from kernels import get_kernel

rdk = get_kernel("REPOSITORY", version=1, trust_remote_code=True)
vocabulary = rdk.Vocabulary([4, 0, 2], target_size=5)  # the target's tokens that the drafter has
affinity = rdk.Affinity.intersection(vocabulary)
drafted = rdk.draft(torch.zeros(1, 3), affinity, seeds=0, positions=0)
verified = rdk.verify(torch.zeros(1, 2, 5), drafted, affinity)
print(verified.tokens)
```
"""


def main(arguments: list[str] | None = None) -> int:
    """Write the folder; see above."""
    parser = argparse.ArgumentParser(prog="python -m hub_kernel", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="must not exist yet")
    folder: Path = parser.parse_args(arguments).folder
    if folder.exists():
        parser.error(f"{folder} exists already; name a new folder, or remove it")
    if not (PACKAGE / "_C.abi3.so").exists():
        parser.error("the operators are not built: python setup.py build_ext --inplace")
    print(f"Wrote {write(folder)}.")
    return 0


def write(folder: Path) -> Path:
    """Write the repository, and return the folder of its one variant."""
    backend, archs = built_for()
    variant = folder / "build" / f"torch-stable-abi211-{backend}-{platform.machine()}-linux"
    shutil.copytree(PACKAGE, variant, ignore=LEFT_OUT)
    for source in kernels.run_time_sources():
        copy = variant / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    name = f"rdk_cuda_{backend}_{digest(variant)}"
    contract = variant / "_ops" / "contract.py"
    text, count = re.subn(
        r'^NAMESPACE = "rdk"$', f'NAMESPACE = "{name}"', contract.read_text("utf-8"), flags=re.M
    )
    if count != 1:
        sys.exit(f"{contract} does not assign NAMESPACE.")
    contract.write_text(text, encoding="utf-8")
    metadata: dict[str, Any] = {
        "id": name,
        "name": "rdk-cuda",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": archs} if archs else {"type": "cpu"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    return variant


def built_for() -> tuple[str, list[str]]:
    """As the Hub names it, `cpu` or `cu130`, and the architectures."""
    import rdk_cuda

    info = rdk_cuda.build_info()
    archs = [re.sub(r"(\d)([af]?)$", r".\1\2", arch) for arch in info["architectures"]]
    return ("cu" + info["cuda"].replace(".", "") if archs else "cpu"), archs


def digest(folder: Path) -> str:
    """Eight digits that name what is in a folder."""
    value = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        value.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return value.hexdigest()[:8]


if __name__ == "__main__":
    sys.exit(main())
