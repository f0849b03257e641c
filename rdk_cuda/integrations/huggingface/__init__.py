"""Hugging Face models in the decoder, the decoder in `model.generate`, and saved drafters."""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rdk_cuda.integrations.huggingface needs transformers: in the source folder, "
        "pip install --no-build-isolation '.[demo]'"
    ) from error

from ...drafter import SavedDrafterError
from .generate import Generate
from .model import HuggingFaceModel
from .saved_drafter import drafting_model, load_drafter, save_drafter

__all__ = [
    "Generate",
    "HuggingFaceModel",
    "SavedDrafterError",
    "drafting_model",
    "load_drafter",
    "save_drafter",
]
