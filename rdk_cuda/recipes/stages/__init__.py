"""Stages: each makes one artifact of a recording."""
