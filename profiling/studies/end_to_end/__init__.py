"""`python -m profiling.studies.end_to_end`: where the time of a decoding step goes."""
