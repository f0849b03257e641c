"""One test of each system in labs, for `make test`; the others run at night."""

from __future__ import annotations

import pytest

from . import test_parallel


def test_the_parallel_decoder_s_pieces_are_one_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    test_parallel.test_pieces_are_one_verify_to_the_bit(2, 7, monkeypatch)
