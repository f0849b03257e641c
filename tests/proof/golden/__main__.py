"""Record the bits of every golden call.

python -m tests.proof.golden
"""

from __future__ import annotations

import json

import pytest
import torch

from .calls import BACKENDS, CALLS, RECORDED, backend, bits, c_library


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, object] = {"c_library": c_library()}
    monkeypatch = pytest.MonkeyPatch()
    for name in BACKENDS:
        with backend(name, monkeypatch):
            found[name] = {call: str(bits(call, monkeypatch)) for call in CALLS}
        monkeypatch.undo()
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"Recorded {len(CALLS)} calls on each of {', '.join(BACKENDS)} in {RECORDED.name}.")


if __name__ == "__main__":
    main()
