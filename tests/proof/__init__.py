"""Proves the operators: by other implementations, faults, statistics, and what is compiled."""
