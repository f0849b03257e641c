"""The old name of `rdk_cuda.shards`."""

from .shards import verify, verify_packed, whole_rows

__all__ = ["verify", "verify_packed", "whole_rows"]
