"""What a kernel is launched with has one layout for the host's compiler and for NVRTC's.

The host fills these structs and the kernel takes their bytes: sizes and the places of all members,
as both compilers see them.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from struct import unpack

import pytest

from rdk_cuda.integrations.cupy import nvrtc

CSRC = Path(__file__).resolve().parents[3] / "csrc"
HEADERS = [CSRC / "params.h", *sorted((CSRC / "cuda").glob("*.h"))]
FOR_THE_HOST = ("plan.h", "start.h", "workspace.h")
HEADERS = [path for path in HEADERS if path.name not in FOR_THE_HOST]
STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r"^  (?!using|static|return)[\w:<> *]+[ *](\w+)(?:\[\d+\])?;", re.MULTILINE)


def members() -> dict[str, list[str]]:
    """By struct, in the order of the files."""
    return {
        name: MEMBER.findall(body)
        for path in HEADERS
        for name, body in STRUCT.findall(path.read_text(encoding="utf-8"))
    }


def questions() -> dict[str, str]:
    """What is compared, and the expression that says it."""
    asked = {}
    for struct, names in members().items():
        asked[f"sizeof {struct}"] = f"sizeof(rdk::{struct})"
        asked[f"alignof {struct}"] = f"alignof(rdk::{struct})"
        for name in names:
            asked[f"{struct}.{name}"] = f"__builtin_offsetof(rdk::{struct}, {name})"
    return asked


def program(declaration: str) -> str:
    includes = "\n".join(f'#include "{path}"' for path in HEADERS)
    return f"{includes}\n{declaration} layout[] = {{{', '.join(questions().values())}}};\n"


def test_the_structs_and_their_members_are_all_seen() -> None:
    found = members()
    assert {entry["launch"] for entry in nvrtc.kernels().values()} <= set(found)
    assert found["Rows"] == ["data", "inner", "outer_stride", "inner_stride"]
    assert found["VerifyLaunch"][:3] == ["params", "shape", "splits"]
    assert found["VerifyParams"][-1] == "method"
    assert all(found.values())


def test_nvrtc_lays_them_out_as_the_host_does(tmp_path: Path) -> None:
    compiler = pytest.importorskip("cupy.cuda", reason="CuPy is not installed").nvrtc
    source, binary = tmp_path / "layout.cpp", tmp_path / "layout"
    main = 'int main() { for (auto value : layout) printf("%lu ", value); }'
    source.write_text(f"#include <cstdio>\n{program('const unsigned long')}{main}\n")
    subprocess.run(["c++", "-std=c++17", source, "-o", binary], check=True)
    on_host = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split()

    text = program('extern "C" __device__ const unsigned long')
    handle = compiler.createProgram(text, "layout.cu", (), ())
    compiler.compileProgram(handle, ("-std=c++17", "-arch=compute_80"))
    ptx = compiler.getPTX(handle).decode()
    match = re.search(r"\.b8 layout\[\d+\] = \{(.*?)\}", ptx)
    compiler.destroyProgram(handle)
    assert match is not None
    names = list(questions())
    # Zeros at the end are left out.
    content = bytes(map(int, match[1].split(", "))).ljust(8 * len(names), b"\0")
    on_device = unpack(f"<{len(names)}Q", content)
    expected = dict(zip(names, map(int, on_host), strict=True))
    assert dict(zip(names, on_device, strict=True)) == expected
    assert len(set(expected.values())) > 20  # sizes and places, not one number
