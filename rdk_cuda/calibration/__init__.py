"""Which affinity recovers the most acceptance: from two models and some text to a pruned drafter.

    recording = record(read_models(target, drafter), windows, temperatures=[0.7])
    vocabulary = Vocabulary.most_likely(recording.mean_probs_at(0.7), count)
    pruning = Pruning(Material(recording, full_head, successor_counts(documents, recording)),
                      vocabulary)
    drafter = pruning.method(RECOMMENDED, temperature=0.7).drafter

`python -m rdk_cuda calibrate` does that from model directories and text files. The pieces it is
made of can be had alone: clusters, heads, offsets, and what each is worth.
"""

from .clusters import cluster_pruned_tokens
from .drafter import PrunedDrafter, sampled_acceptance
from .heads import prune_head
from .low_rank import LowRankHead, low_rank_head, screened_tokens
from .material import Material, Options, successor_counts
from .methods import (
    METHODS,
    RECOMMENDED,
    Method,
    Pruning,
)
from .moments import second_moment
from .offsets import calibrate_offsets, with_offsets
from .recording import Recording, RecordingError, record
from .recording.reading import Read, Reading, read_models
from .recording.samples import Samples
from .recording.windows import Window, cut_windows
from .tuning import (
    TauAndKeep,
    Tuned,
    tune,
    tuned_covariance,
    tuned_first_order,
)
from .virtual import refine_virtual, virtual_drafter

__all__ = [
    "METHODS",
    "RECOMMENDED",
    "LowRankHead",
    "Material",
    "Method",
    "Options",
    "PrunedDrafter",
    "Pruning",
    "Read",
    "Reading",
    "Recording",
    "RecordingError",
    "Samples",
    "TauAndKeep",
    "Tuned",
    "Window",
    "calibrate_offsets",
    "cluster_pruned_tokens",
    "cut_windows",
    "low_rank_head",
    "prune_head",
    "read_models",
    "record",
    "refine_virtual",
    "sampled_acceptance",
    "screened_tokens",
    "second_moment",
    "successor_counts",
    "tune",
    "tuned_covariance",
    "tuned_first_order",
    "virtual_drafter",
    "with_offsets",
]
