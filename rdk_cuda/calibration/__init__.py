"""Which affinity recovers the most acceptance: from two models and some text to a pruned drafter.

    recording = record(read_models(target, drafter), windows, temperatures=[0.7])
    settings = [Setting(keep=0.25, temperature=0.7)]
    (calibrated,) = calibrate(recording, full_head, documents, settings)
    drafter = calibrated.method.drafter

`python -m rdk_cuda calibrate` does that from model directories and text files. The parts can be
used on their own: clusters, offsets, and every method for one pruning.
"""

from ..decoding.models import Read, Reading
from ..recipes.choose import tune
from ..recipes.inputs.documents import Window, cut_windows
from ..recipes.inputs.pairs import read_models
from ..recipes.record import record
from ..recipes.recording import Recording, Samples, successor_counts
from ..recipes.request import Setting
from ..recipes.shards import RecordingError
from ..recipes.stages.affinity import Calibrated, calibrate
from ..recipes.stages.clusters import cluster_pruned_tokens
from ..recipes.stages.kept_tokens import SCORES
from ..recipes.stages.lengths import CalibratedLength, calibrate_length
from ..recipes.stages.lifted import lift_rows, refitted_rows, shifted_rows
from ..recipes.stages.pruning import (
    PRUNED,
    RECOMMENDED,
    VIRTUAL,
    Material,
    Method,
    Options,
    Pruning,
)
from ..recipes.stages.screen import low_rank_factors, screens_within
from ..recipes.stages.virtual import virtual_drafter

__all__ = [
    "PRUNED",
    "RECOMMENDED",
    "SCORES",
    "VIRTUAL",
    "Calibrated",
    "CalibratedLength",
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
    "cluster_pruned_tokens",
    "cut_windows",
    "lift_rows",
    "low_rank_factors",
    "read_models",
    "record",
    "refitted_rows",
    "screens_within",
    "shifted_rows",
    "successor_counts",
    "tune",
    "virtual_drafter",
]
