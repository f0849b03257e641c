"""Copies of the target in processes of their own judge drafts while drafting goes on (DSI).

    python examples/parallel_targets.py

The models are tables of bigrams that take their time, as passes on a device of their own would:
they wait. With more targets a text is sooner there, and it is the same text.
"""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from rdk_cuda.decoding import Output, SpeculativeDecoder
from rdk_cuda.labs.parallel_decoder import ParallelDecoder, least_lookahead

V, TARGET_SECONDS, DRAFTER_SECONDS, TOKENS = 100, 0.06, 0.01, 60


class Bigrams:
    """A `CausalModel` of one sequence: logits `[V, V]` after each token, and a pass's seconds."""

    device, context, vocabulary_size = torch.device("cpu"), math.inf, V

    def __init__(self, table: Tensor, seconds: float) -> None:
        self.table, self.seconds = table, seconds

    def reset(self, batch_size: int) -> None:
        """Forget everything."""
        self.lengths = [0] * batch_size

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """Logits after the last tokens."""
        time.sleep(self.seconds)
        self.lengths = [self.lengths[0] + len(tokens[0])]
        return Output(self.table[torch.tensor([list(tokens[0])[-keep[0] :]])])

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what is behind."""
        self.lengths = [min(self.lengths[0], lengths[0])]


def table(noise: float) -> Tensor:
    """The same for all, and some noise."""
    generator = torch.Generator().manual_seed(0)
    shared = 3 * torch.randn(V, V, generator=generator)
    return shared + noise * torch.randn(V, V, generator=generator)


def target() -> Bigrams:
    """What a worker's process calls; yours loads a model, on a device of its own."""
    torch.set_num_threads(1)
    return Bigrams(table(0.0), TARGET_SECONDS)


if __name__ == "__main__":
    drafter, cost = Bigrams(table(0.5), DRAFTER_SECONDS), DRAFTER_SECONDS / TARGET_SECONDS
    serial = SpeculativeDecoder(target(), drafter, draft_length=4)
    began = time.perf_counter()
    serial.generate([[5]], max_new_tokens=TOKENS, seeds=1)
    print(f"drafting and verifying in turn: {time.perf_counter() - began:.2f} s")
    texts = []
    for servers in (1, 3):
        lookahead = least_lookahead(cost, servers)
        with ParallelDecoder([target] * servers, drafter, lookahead=lookahead) as decoder:
            began = time.perf_counter()
            texts.append(decoder.generate([[5]], max_new_tokens=TOKENS, seeds=1).tokens[0])
            seconds = time.perf_counter() - began
            greedy = decoder.generate([[5]], max_new_tokens=TOKENS, temperature=0.0).tokens[0]
        print(f"{servers} targets, pieces of {lookahead} drafts: {seconds:.2f} s")
    assert texts[0] == texts[1]
    best = table(0.0).argmax(1).tolist()
    assert greedy == [best[token] for token in [5, *greedy[:-1]]]
    print(f"the greedy text of {TOKENS} tokens is the target's own")
