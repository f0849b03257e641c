"""Which tokens of a Hugging Face tokenizer a pruned drafter should never lose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def indispensable_tokens(tokenizer: Any) -> Tensor:
    """Find special tokens and byte fallbacks: output needs them even if no text has them.

    Special tokens are all special ids, and added tokens that are flagged special. Byte fallbacks
    spell what no other token does: `<0x00>` to `<0xFF>` of
    SentencePiece, or the tokens of a single byte of a byte-level BPE.

    Args:
        tokenizer: from `transformers.AutoTokenizer`.

    Returns:
        int64, ascending target ids, for `Vocabulary.most_likely(..., always=...)`.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import PreTrainedTokenizerFast
        >>> ids = {"<s>": 0, "<0x41>": 1, "word": 2}
        >>> tokenizer = Tokenizer(models.BPE(ids, [], byte_fallback=True))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
        >>> indispensable_tokens(tokenizer)
        tensor([0, 1])
    """
    ids = set(tokenizer.all_special_ids)
    ids.update(id for id, token in tokenizer.added_tokens_decoder.items() if token.special)
    known = tokenizer.get_vocab()
    ids.update(known[token] for token in _byte_tokens(tokenizer) if token in known)
    return torch.tensor(sorted(ids), dtype=torch.int64, device="cpu")


def _byte_tokens(tokenizer: Any) -> list[str]:
    """How the tokenizer would name a token for each of the 256 bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    # A byte-level vocabulary writes each byte as a character of an alphabet of its own. There "Ã©"
    # are the two bytes of é in UTF-8; elsewhere they are two letters.
    if tokenizer.convert_tokens_to_string(["Ã", "©"]).strip() == "é":
        return list(ByteLevel.alphabet())
    return [f"<0x{byte:02X}>" for byte in range(256)]
