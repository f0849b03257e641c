"""The demo, `python -m examples.demo`: speculative decoding with a pruned drafter on real text."""
