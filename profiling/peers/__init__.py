"""`python -m profiling.peers`: other samplers of a step, tested, then timed next to ours."""
