"""SGLang's trees as `rdk_cuda.verify_tree` takes them, for a loop of your own."""

from .links import parents_of

__all__ = ["parents_of"]
