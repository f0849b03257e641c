"""Both models read a text once; what the rest of a calibration needs is kept."""

from .file import RecordingError
from .reading import Read, Reading, read_models
from .recording import Each, Recording, record
from .samples import Samples
from .windows import Window, cut_windows

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
