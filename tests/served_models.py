"""Which model types are served, how they are rolled back, and what is refused with why.

`python -m tests.served_models` makes tiny models of the installed Transformers, and writes what
`HuggingFaceModel` does with them to `profiling/results/served-models/transformers.json`; then run
`python -m profiling.documents`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from rdk_cuda.files import write_json
from rdk_cuda.integrations.huggingface import HuggingFaceModel

from .architectures import CONFIGS, SIZE, tiny
from .recurrent_models import INDEXERS, REFUSED, ROWS, TYPES, recurrent

RESULT = Path(__file__).parents[1] / "profiling/results/served-models/transformers.json"
TOKENS = [[token % (SIZE - 1) + 1 for token in range(first, first + 24, 2)] for first in (3, 40)]


def models(named: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Tiny ones, of all types or of those that are named."""
    kinds = {getattr(transformers, kind).model_type: name for name, (kind, _) in CONFIGS.items()}
    for name in kinds.keys() if named is None else kinds.keys() & named:
        yield name, tiny(kinds[name])
    for name in TYPES | INDEXERS | ROWS | REFUSED:
        if named is None or name in named:
            yield name, recurrent(name)


def row_of(name: str, model: Any) -> dict[str, Any]:
    """How it is served, and how far logits behind a rollback are off; or why it is not."""
    try:
        wrapped = HuggingFaceModel(model)
    except (TypeError, ValueError) as error:
        reason = str(error).split(f" of Transformers {transformers.__version__} ")[-1]
        return {"type": name, "refused": reason.split("; ")[0].split(": ")[0]}
    wrapped.reset(2)
    wrapped.feed([[*own[:4], 5, 5] for own in TOKENS], [6, 6])
    wrapped.rollback([4, 4])
    with torch.no_grad():
        found = wrapped.feed([own[4:] for own in TOKENS], [8, 8]).logits
        plain = model(input_ids=torch.tensor(TOKENS), use_cache=False).logits[:, 4:]
    return {
        "type": name,
        "how": how(wrapped),
        "error": float((found - plain).norm() / plain.norm()),
    }


def how(wrapped: HuggingFaceModel) -> str:
    """What a rollback does."""
    if (by_slots := wrapped._cache.layers.by_slots) is not None:
        return f"one cache a sequence, for {by_slots}"
    cache, kinds = wrapped._recurrent, {type(each).__name__ for each in wrapped._cache.past.layers}
    parts = ["indexers' keys and positions"] if "IndexedSlotLayer" in kinds else []
    if cache is None:
        windows = ["windows"] if wrapped._cache.layers.window else []
        return " and ".join(["slots", *windows, *parts])
    if cache.stepwise:
        return "one token at a time, mixers again"
    notes = [note for own in cache.newest.notes.values() for note in own.values()]
    if any(note is None for note in notes):
        return "mixers again"
    return " and ".join([*parts, "kernels again" if cache._forwards else "columns of convolutions"])


def main() -> None:
    """Write all rows."""
    rows = [row_of(*each) for each in models()]
    about = {"transformers": transformers.__version__, "torch": torch.__version__}
    RESULT.parent.mkdir(exist_ok=True)
    write_json({**about, "rows": rows}, RESULT)


if __name__ == "__main__":
    main()
