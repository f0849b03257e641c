"""What the commands of `python -m rdk_cuda` share, and those that have no folder of their own."""
