"""The demo, `python -m rdk_cuda demo`: speculative decoding with a pruned drafter on real text."""
