"""The kernels compile at run time too, by CuPy's NVRTC: without a toolkit, nvcc or a GPU."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import build_kernels
from rdk_cuda.integrations.cupy import cubin_cache, nvrtc
from rdk_cuda.integrations.cupy.cubin_cache import Cubin

pytest.importorskip("cupy", reason="CuPy is not installed")

pytestmark = pytest.mark.night

NAMES = [name for entry in nvrtc.kernels().values() for name in entry["kernels"]]
# All for one architecture, and a kernel of each operator for the oldest and the newest.
EVERY = [(name, "90a") for name in NAMES]
SOME = [entry["kernels"][0] for entry in nvrtc.kernels().values()]
EVERY += [(name, arch) for name in SOME for arch in ("80", "120")]


@pytest.fixture(scope="module")
def cubins() -> dict[tuple[str, str], Cubin]:
    """Kept in build/, as nvcc's are; what is not there is compiled several at once."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setenv("RDK_CACHE_DIR", str(build_kernels.ROOT / "build" / "nvrtc"))
        found = pool.map(lambda pair: nvrtc.compile_kernel(*pair), EVERY)
        return dict(zip(EVERY, found, strict=True))


def test_the_kernels_are_those_that_nvcc_compiles_with_what_decides_the_bits() -> None:
    recorded = json.loads(Path(__file__).with_name("kernel_resources.json").read_text())
    assert sorted(NAMES) == sorted(recorded["kernels"])
    assert set(nvrtc.kernels()) == {path.stem for path in build_kernels.sources()}
    assert set(nvrtc.OPTIONS) <= set(build_kernels.FLAGS)
    assert "-fmad=false" in nvrtc.OPTIONS


@pytest.mark.parametrize("kernel", NAMES)
def test_every_kernel_is_found_by_its_name(
    cubins: dict[tuple[str, str], Cubin], kernel: str
) -> None:
    of_this = {arch: cubin for (name, arch), cubin in cubins.items() if name == kernel}
    assert set(of_this) == {"90a", *(("80", "120") if kernel in SOME else ())}
    for cubin in of_this.values():
        assert build_kernels.readable(cubin.symbol) == kernel
        assert cubin.code.startswith(b"\x7fELF")
        assert b".text." + cubin.symbol.encode() in cubin.code


def test_what_does_not_compile_is_refused_with_the_compilers_words() -> None:
    """A negative control."""
    for architecture in ("sm_80", "8.0", "80 -I/", ""):
        with pytest.raises(ValueError, match="needs a compute capability such as '80' or '90a'"):
            nvrtc.compile(architecture)
    program = "__global__ void broken_kernel() { undeclared(); }\n"
    with pytest.raises(RuntimeError, match=r"broken_kernel does not compile(.|\n)*undeclared"):
        nvrtc.run_nvrtc(program, "broken_kernel", ("-arch=sm_80",))


def test_a_launch_that_the_host_lays_out_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDK_CACHE_DIR", str(tmp_path))
    entry = nvrtc.kernels()["step_keys"]
    monkeypatch.setitem(entry, "launch_bytes", entry["launch_bytes"] + 8)
    with pytest.raises(RuntimeError, match="host and device must agree on StepKeysLaunch"):
        nvrtc.compile_kernel("step_keys_kernel", "80")


# -------------------------------------------------------------------------------------- the disk


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What NVRTC is asked for, with an empty folder on disk; its answer is made up."""
    asked: list[str] = []

    def run(program: str, kernel: str, options: tuple[str, ...]) -> Cubin:
        asked.append(f"{kernel} {' '.join(options)}")
        return Cubin(f"symbol {len(asked)}", bytes(range(256)))

    monkeypatch.setattr(nvrtc, "run_nvrtc", run)
    monkeypatch.setenv("RDK_CACHE_DIR", str(tmp_path / "cache"))
    return asked


def test_a_kernel_on_disk_is_compiled_anew_where_what_it_depends_on_has_changed(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> Cubin:
        return nvrtc.compile_kernel("step_keys_kernel", "80")

    assert again() == again() == Cubin("symbol 1", bytes(range(256)))
    nvrtc.compile_kernel("step_keys_kernel", "86")
    nvrtc.compile_kernel("draft_kernel<float, Whole>", "80")
    for name, value in (
        ("VERSION", "99"),
        ("OPTIONS", ("-std=c++20",)),
        ("nvrtc_version", lambda: (99, 9)),
        ("_source_texts", lambda: ("other.cuh", "int x;")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(nvrtc, name, value)
            again()
    assert len(compiled) == 7
    again()
    assert len(compiled) == 7


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign", "another version"])
def test_a_damaged_file_is_compiled_again_and_replaced(compiled: list[str], damage: str) -> None:
    nvrtc.compile_kernel("step_keys_kernel", "80")
    (file,) = cubin_cache.folder().iterdir()
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut": whole[:-1],
            "changed": whole[:-9] + b"X" + whole[-8:],
            "empty": b"",
            "foreign": b"\x80\x04N.",
            "another version": whole.replace(b"cubin 1", b"cubin 2"),
        }[damage]
    )
    assert nvrtc.compile_kernel("step_keys_kernel", "80").symbol == "symbol 2"
    assert nvrtc.compile_kernel("step_keys_kernel", "80").symbol == "symbol 2"
    assert list(cubin_cache.folder().iterdir()) == [file]


def test_the_folder_is_where_caches_are_and_the_users_alone(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = cubin_cache.folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(cubin_cache.UnsafeCacheError, match="RDK_CACHE_DIR"):
        nvrtc.compile_kernel("step_keys_kernel", "80")
    assert compiled == []
    monkeypatch.delenv("RDK_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cubin_cache.folder() == tmp_path / ".cache" / "rdk_cuda"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cubin_cache.folder() == tmp_path / "xdg" / "rdk_cuda"
    # Without a folder kernels are compiled all the same.
    (tmp_path / "file").touch()
    monkeypatch.setenv("RDK_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.warns(UserWarning, match="cannot keep a compiled kernel .* set RDK_CACHE_DIR"):
        assert nvrtc.compile_kernel("step_keys_kernel", "80").symbol == "symbol 1"
