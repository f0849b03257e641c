"""`python -m profiling.studies.acceptance`: what each method recovers of the lost acceptance."""
