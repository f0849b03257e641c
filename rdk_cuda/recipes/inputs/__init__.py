"""The target, the drafter, their tokenizers and the text, from local files."""
