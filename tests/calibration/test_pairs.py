"""q at the sampled positions' targets is what the operator makes of the same drafter."""

import pytest
import torch

from rdk_cuda import redistribute
from rdk_cuda.affinity import Affinity
from rdk_cuda.calibration import pairs as pairs_module
from rdk_cuda.calibration.drafter import PrunedDrafter
from rdk_cuda.calibration.pairs import draft_pairs, redistributed
from rdk_cuda.dynamic_tokens import RecentTokens
from rdk_cuda.vocabulary import Vocabulary

from . import recorded
from .recorded import V_T

pytestmark = pytest.mark.usefixtures("one_thread")


def _affinity(kind, vocabulary):
    """Without redistribution, with a masked row, with virtual tokens, and with a prior."""
    if kind == "masked row":
        ids = torch.cat([vocabulary.draft_ids, torch.tensor([-1])])
        return Affinity.intersection(Vocabulary(ids, V_T))
    clusters = torch.full((V_T,), -1)
    clusters[vocabulary.pruned] = torch.arange(vocabulary.pruned.numel()) % 2
    if kind == "virtual":
        return Affinity.virtual_tokens(vocabulary, clusters, torch.arange(1.0, V_T + 1))
    if kind == "cold mass":
        return Affinity.cold_mass(vocabulary, torch.arange(1.0, V_T + 1))
    return Affinity.intersection(vocabulary)


def _drafter(kind="plain", dynamic=False, seed=0):
    vocabulary = recorded.vocabulary(seed=seed)
    affinity = _affinity(kind, vocabulary)
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(affinity.draft_size, recorded.D, generator=random)
    recent = RecentTokens(vocabulary, width=3) if dynamic else None
    return PrunedDrafter(vocabulary, affinity, weight, None, recent)


KINDS = ["plain", "masked row", "virtual", "cold mass"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", recorded.TEMPERATURES)
def test_q_at_the_targets_is_what_the_operator_makes(kind, dynamic, temperature, monkeypatch):
    monkeypatch.setattr(pairs_module, "_BLOCK_ENTRIES", 100)  # blocks of a few samples
    samples, head = recorded.samples(width=7), recorded.full_head()
    drafter = _drafter(kind, dynamic)
    pairs = draft_pairs(samples, drafter, head, temperature)
    columns = drafter.columns(head, samples.hidden, samples.contexts)
    q = redistribute(affinity=drafter.affinity, temperature=temperature, **columns)
    expected = q.gather(1, samples.targets.long())
    made = redistributed(pairs, drafter.affinity)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
