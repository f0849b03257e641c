"""The vocabularies of FR-Spec, SGLang and EAGLE-3 checkpoints, read and written."""

from .files import TokenMapError
from .maps import (
    d2t_tensors,
    from_d2t,
    from_ids,
    read_token_map,
    write_d2t,
    write_hot_tokens,
)

__all__ = [
    "TokenMapError",
    "d2t_tensors",
    "from_d2t",
    "from_ids",
    "read_token_map",
    "write_d2t",
    "write_hot_tokens",
]
