"""How tokens to keep are chosen. Without torch, as the command line lists them."""

SCORES = ("probability", "frequency", "variance")
"""By mean target probability, by count, or by the probability's variance."""
