"""Decoders to begin with, each in under 60 lines, and the demo."""
