"""How many drafts a pass of the target accepts, and how fast: chains and trees."""
