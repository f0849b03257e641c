"""From two models and a text to a drafter with evidence."""
