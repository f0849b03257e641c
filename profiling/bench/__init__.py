"""`python -m profiling.bench`: times the operators; `regression` compares two runs."""
