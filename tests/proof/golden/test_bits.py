"""Every operator gives the bits that it gave when they were recorded."""

from __future__ import annotations

import pytest
import torch

from rdk_cuda._ops.contract import OPERATORS

from .calls import CALLS, backend, bits, c_library, recorded


@pytest.mark.parametrize(
    ("name", "part"),
    [("cpu", "every"), ("emulated", "of"), pytest.param("emulated", "every", marks=pytest.mark.ci)],
)
def test_every_operator_gives_the_recorded_bits(
    name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator takes its time for every path, so at first a call of each operator and dtype."""
    library, golden = recorded()
    assert set(CALLS) == set(golden[name]), "record what is new: python -m tests.proof.golden"
    if library != c_library():
        pytest.skip(f"recorded with {library}, and this is {c_library()}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with backend(name, monkeypatch):
        some = [call for call in golden[name] if part == "every" or f" {part} torch." in call]
        found = {call: bits(call, monkeypatch) for call in some}
    assert len(found) >= 3 * len(OPERATORS)
    torch.set_num_threads(threads)
    others = [call for call in found if found[call].inputs != golden[name][call].inputs]
    differ = [call for call in found if found[call].outputs != golden[name][call].outputs]
    assert [call for call in differ if call not in others] == []
    if others:
        pytest.skip(f"torch draws other inputs on this machine for {', '.join(others)}")


def test_other_inputs_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: hashes of constants would be equal, too."""
    for name in ("draft", "overlap", "overlap_backward", "on shards"):
        first, other = (bits(call, monkeypatch) for call in (name, f"{name}, 16 bits"))
        assert first.outputs != other.outputs, name
