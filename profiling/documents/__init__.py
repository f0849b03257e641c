"""Writes every table with measured figures that stands in a document."""
