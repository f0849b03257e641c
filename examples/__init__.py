"""Decoders to begin with, and the demo."""
