"""Training on the acceptance rate."""
