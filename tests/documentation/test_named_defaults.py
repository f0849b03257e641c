"""The package leaves no tensor's device or dtype to torch's defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES_DEVICE = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones"),
    *("rand", "randint", "randn", "randperm", "range", "scalar_tensor", "sparse_bsr_tensor"),
    *("sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor"),
    *("tensor", "tril_indices", "triu_indices", "zeros"),
}
NAMES_DTYPE = {"empty", "eye", "full", "linspace", "ones", "rand", "randn", "tensor", "zeros"}


def left_to_defaults(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each call that leaves its device or its dtype to torch's defaults."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = node.func.value, node.func.attr
        if isinstance(owner, ast.Name) and owner.id == "torch":
            named = {keyword.arg for keyword in node.keywords}
            if (name in NAMES_DEVICE and "device" not in named) or (
                name in NAMES_DTYPE and "dtype" not in named
            ):
                yield node.lineno, name


def test_every_tensor_made_in_the_package_names_its_device_and_dtype() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: torch.{name}"
        for path in sorted((ROOT / "rdk_cuda").rglob("*.py"))
        for line, name in left_to_defaults(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("torch.zeros(3)", [1]),
        ("torch.zeros(3, dtype=torch.int64)", [1]),
        ("torch.full((2,), 0.7, device=x)", [1]),
        ("torch.arange(3)", [1]),
        ("torch.arange(3, device=x)\ntorch.zeros(3, device=x, dtype=y)\nx.new_zeros(3)", []),
    ],
)
def test_that_check_finds_what_is_left_to_defaults(source: str, lines: list[int]) -> None:
    assert [line for line, _ in left_to_defaults(source)] == lines
