"""A plugin that makes SGLang draft with `rdk::draft` and decide with `rdk::verify`.

    python -m sglang.launch_server --model-path TARGET --speculative-algorithm STANDALONE
        --speculative-draft-model-path DIR/drafter --speculative-token-map DIR
        --speculative-eagle-topk 1 --speculative-num-steps 4 --speculative-num-draft-tokens 5

SGLang finds it by its entry point. It does nothing unless `--speculative-token-map` names a
directory: `docs/serving.md` says how to get `DIR`, and what is proven so far. SGLang itself is not
changed, and is imported only by SGLang.
"""

from __future__ import annotations

from functools import partial as _partial
from typing import TYPE_CHECKING

from ... import moved as _moved
from .chain import ChainVerified, temperatures_of, verify_chain

if not TYPE_CHECKING:
    __getattr__ = _partial(_moved.attribute, __name__)

__all__ = ["ChainVerified", "temperatures_of", "verify_chain"]
