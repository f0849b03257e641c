"""`python -m profiling.bench`: times the operators. `roofline` and `regression` read results."""
