"""Which affinity recovers the most acceptance: from two models and some text to a pruned drafter.

    recording = record(read_models(target, drafter), windows, temperatures=[0.7])
    settings = [Setting(keep=0.25, temperature=0.7)]
    (calibrated,) = calibrate(recording, full_head, documents, settings)
    drafter = calibrated.method.drafter

`python -m rdk_cuda calibrate` does that from model directories and text files. The parts can be
used on their own: clusters, offsets, and every method for one pruning.
"""

from .calibrate import SCORES, Calibrated, Setting, calibrate, kept_tokens, successor_counts
from .clusters import cluster_pruned_tokens
from .lengths import CalibratedLength, calibrate_length
from .lifted import BONUSES, lift_rows, refitted_rows, shifted_rows
from .methods import PRUNED, RECOMMENDED, VIRTUAL, Material, Method, Options, Pruning
from .reading import Read, Reading, Window, cut_windows
from .record import read_models, record
from .recording import Recording, Samples
from .recording_file import RecordingError
from .screens import low_rank_factors, screens_within
from .trees import ExpectedTree, expected_tree
from .tuning import (
    sampled_acceptance,
    second_moment,
    tune,
    tuned_covariance,
    tuned_first_order,
)
from .virtual import calibrate_offsets, refine_virtual, virtual_drafter, with_offsets

__all__ = [
    "BONUSES",
    "PRUNED",
    "RECOMMENDED",
    "SCORES",
    "VIRTUAL",
    "Calibrated",
    "CalibratedLength",
    "ExpectedTree",
    "Material",
    "Method",
    "Options",
    "Pruning",
    "Read",
    "Reading",
    "Recording",
    "RecordingError",
    "Samples",
    "Setting",
    "Window",
    "calibrate",
    "calibrate_length",
    "calibrate_offsets",
    "cluster_pruned_tokens",
    "cut_windows",
    "expected_tree",
    "kept_tokens",
    "lift_rows",
    "low_rank_factors",
    "read_models",
    "record",
    "refine_virtual",
    "refitted_rows",
    "sampled_acceptance",
    "screens_within",
    "second_moment",
    "shifted_rows",
    "successor_counts",
    "tune",
    "tuned_covariance",
    "tuned_first_order",
    "virtual_drafter",
    "with_offsets",
]
