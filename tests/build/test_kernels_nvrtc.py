"""The kernels compile under NVRTC too: without a CUDA toolkit and without their host code."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_kernels import KERNELS

from .nvrtc import PACKAGE, compile_kernels, find_library

ENTRY_POINTS = {
    "draft": "rdk::draft_kernel<rdk::BFloat16Bits>",
    "verify": "rdk::verify_kernel<rdk::BFloat16Bits, rdk::BFloat16Bits>",
    "redistribute": "rdk::redistribute_kernel<rdk::Float16Bits>",
    "gather_logits": "rdk::gather_logits_kernel<float>",
    "step_seeds": "rdk::step_seeds_kernel",
}

needs_nvrtc = pytest.mark.skipif(find_library() is None, reason=f"{PACKAGE} is not installed")


def test_every_kernel_has_an_entry_point_here() -> None:
    assert set(ENTRY_POINTS) == {path.stem for path in KERNELS.glob("*.cu")}


@needs_nvrtc
@pytest.mark.parametrize("arch", ["80", "90a", "120"])
@pytest.mark.parametrize("kernel", ENTRY_POINTS)
def test_the_entry_point_is_found_by_name(kernel: str, arch: str) -> None:
    entry = ENTRY_POINTS[kernel]
    symbols, cubin_bytes = compile_kernels(KERNELS / f"{kernel}.cu", arch, [entry])
    assert f"{kernel}_kernel" in symbols[entry]
    assert cubin_bytes > 0


@needs_nvrtc
def test_what_does_not_compile_is_refused_with_the_compilers_words(tmp_path: Path) -> None:
    """A negative control."""
    source = tmp_path / "broken.cu"
    source.write_text("__global__ void broken_kernel() { undeclared(); }\n")
    with pytest.raises(ValueError, match="undeclared"):
        compile_kernels(source, "80", ["broken_kernel"])
