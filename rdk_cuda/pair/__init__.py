"""A target, its drafter, their tokenizer and text for both, from local files."""
