"""The same seeds give the same tokens as ever: outputs that were recorded once.

`python tests/decoding/test_same_tokens.py` records them anew, after a change that is meant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from table_model import TableModel, pruned, random_table

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.decoding import Output, SpeculativeDecoder, StateDrafter

RECORDED = Path(__file__).with_name("recorded_tokens.json")
SIZE = 9
VOCABULARY = Vocabulary([0, 2, 3, 7], SIZE)
PROMPTS = [[1], [4, 4, 8], [7, 2], [0, 3, 5, 6, 1]]
BATCH: dict[str, Any] = {
    "max_new_tokens": [30, 7, 22, 30],
    "temperature": [1.0, 0.0, 0.6, 1.4],
    "seeds": [3, 4, -5, 2**62],
    "eos": [(), (8,), (), (8,)],
    "logprobs": "processed",
}
LIMITS: dict[str, Any] = {"top_k": [3, 0, 5, 4], "top_p": 0.9, "min_p": 0.05}
CLUSTERS = torch.tensor([-1, 0, -1, -1, 1, 0, 1, -1, 1])
AFFINITY = Affinity.virtual_tokens(VOCABULARY, CLUSTERS, torch.ones(SIZE))
TARGET = random_table(SIZE, 0)
NEAR = TARGET + random_table(SIZE, 100, spread=0.7)


class WithStates(TableModel):
    """A target that gives its tokens away as states, and notes nothing else."""

    def feed(self, tokens: Any, keep: Any) -> Output:
        states = [torch.tensor(list(new)).float().view(-1, 1) for new in tokens]
        return super().feed(tokens, keep)._replace(states=states)


class ReadingStates(TableModel):
    """A drafter as EAGLE's: it drafts behind tokens whose states it knows, and uses them."""

    observed: list[int] = []  # noqa: RUF012  (of the batch, after reset)

    def reset(self, batch_size: int) -> None:
        super().reset(batch_size)
        self.observed, self.seen = [0] * batch_size, [0.0] * batch_size

    def observe(self, states: Any) -> None:
        self.observed = [old + len(new) for old, new in zip(self.observed, states, strict=True)]
        self.seen = [float(new[-1]) if len(new) else 0.0 for new in states]

    def rollback(self, lengths: Any) -> None:
        super().rollback(lengths)
        self.observed = [min(old, new) for old, new in zip(self.observed, lengths, strict=True)]

    def feed(self, tokens: Any, keep: Any) -> Output:
        output = super().feed(tokens, keep)
        shift = torch.tensor(self.seen)[:, None, None]
        return output._replace(logits=output.logits + shift * torch.linspace(0, 0.2, 6))


def decoders() -> dict[str, SpeculativeDecoder]:
    target, drafter = TableModel(TARGET, SIZE), TableModel(pruned(NEAR, AFFINITY), SIZE)
    given: dict[str, Any] = {"draft_length": 3, "vocabulary": VOCABULARY}
    dynamic: dict[str, Any] = {
        "dynamic_tokens": RecentTokens(VOCABULARY, width=2, window=4),
        "full_head": ((NEAR.T + 1).contiguous(), None),
    }
    states = ReadingStates(drafter.table, SIZE)
    assert isinstance(states, StateDrafter)
    return {
        "alone": SpeculativeDecoder(target, draft_length=0),
        "token": SpeculativeDecoder(target, drafter, AFFINITY, **given),
        "block": SpeculativeDecoder(target, drafter, AFFINITY, method="block", **given),
        "dynamic": SpeculativeDecoder(target, drafter, AFFINITY, **given, **dynamic),
        "dynamic, block": SpeculativeDecoder(
            target, drafter, AFFINITY, method="block", draft_temperature=0.8, **given, **dynamic
        ),
        "untruncated": SpeculativeDecoder(
            target, drafter, AFFINITY, truncate_drafts=False, **given
        ),
        "states": SpeculativeDecoder(WithStates(TARGET, SIZE), states, AFFINITY, **given),
    }


def outputs(decoder: SpeculativeDecoder) -> dict[str, Any]:
    """Of ragged sequences, with and without limits, and the counts."""
    found = {}
    for name, more in (("plain", {}), ("limits", LIMITS)):
        tokens, statistics, logprobs = decoder.generate(PROMPTS, **BATCH, **more)
        rounded = [[round(each, 4) for each in row] for row in logprobs]
        found[name] = {"tokens": tokens, **vars(statistics), "logprobs": rounded}
    return found


def eagle() -> SpeculativeDecoder:
    """Weights of our own numbers: a library may change how it draws its own."""
    pytest.importorskip("transformers")
    from rdk_cuda.integrations.eagle3 import Eagle3Config, Eagle3Drafter, Eagle3Network
    from rdk_cuda.integrations.huggingface import HuggingFaceModel
    from tests.tiny_llamas import llama, shape

    model, layer = llama(SIZE, layers=8), shape(SIZE, heads=4)
    network = Eagle3Network(Eagle3Config(layer, 4, target_hidden_size=16)).eval()
    generator = torch.Generator().manual_seed(0)
    for module in (model, network):
        for _, weight in sorted(module.named_parameters()):
            if weight.dim() == 2:
                weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    drafter = Eagle3Drafter(network, 8)
    target = HuggingFaceModel(model, state_layers=drafter.state_layers)
    affinity = Affinity.intersection(VOCABULARY)
    return SpeculativeDecoder(target, drafter, affinity, draft_length=3)


def close(found: Any, recorded: Any) -> bool:
    """Equal but for the last digit of log-probabilities."""
    if isinstance(found, dict):
        return found.keys() == recorded.keys() and all(close(found[k], recorded[k]) for k in found)
    if isinstance(found, list):
        return len(found) == len(recorded) and all(map(close, found, recorded))
    return bool(abs(found - recorded) <= (2e-4 if isinstance(found, float) else 0))


@pytest.mark.parametrize("name", decoders())
def test_the_same_seeds_give_the_same_tokens_as_ever(name: str) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert close(outputs(decoders()[name]), recorded[name])


def test_so_does_a_drafter_on_the_target_s_states() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert close(outputs(eagle()), recorded["eagle"])


if __name__ == "__main__":
    everything = {name: outputs(each) for name, each in decoders().items()} | {
        "eagle": outputs(eagle())
    }
    text = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in everything.items())
    RECORDED.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
