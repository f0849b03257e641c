"""Targets that a worker's process makes: sound, dying, hanging, and none at all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch
from table_model import TableModel, random_table

from rdk_cuda.decoding import Output


class Failing(TableModel):
    """A target whose process ends, or hangs, in its pass of this number."""

    dies_in = hangs_in = 0

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        output = super().feed(tokens, keep)
        if self.passes == self.dies_in:
            os._exit(3)
        if self.passes == self.hangs_in:
            time.sleep(1000)
        return output


def target(dies_in: int = 0, hangs_in: int = 0) -> TableModel:
    torch.set_num_threads(1)
    model = Failing(random_table(6, seed=1), 6)
    model.dies_in, model.hangs_in = dies_in, hangs_in
    return model


class Refusing(TableModel):
    """Never draws its last token, and does not read it either."""

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        if max(tokens[0]) == 5:
            raise ValueError(f"got {tokens[0]}; reads ids below 5")
        return super().feed(tokens, keep)


def refusing() -> TableModel:
    torch.set_num_threads(1)
    table = random_table(6, seed=1)
    table[:, 5] = -torch.inf
    return Refusing(table, 6)


def missing() -> TableModel:
    raise FileNotFoundError("there is no such model")
