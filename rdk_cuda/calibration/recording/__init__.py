"""Both models read a text once; what the rest of a calibration needs is kept."""

from .reading import Read, Reading, Window, cut_windows, read_models
from .recording import Each, Recording, record
from .samples import Samples
from .state import RecordingError

__all__ = [
    "Each",
    "Read",
    "Reading",
    "Recording",
    "RecordingError",
    "Samples",
    "Window",
    "cut_windows",
    "read_models",
    "record",
]
