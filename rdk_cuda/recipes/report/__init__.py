"""Acceptance on held-out text: measured, tabulated, plotted."""
