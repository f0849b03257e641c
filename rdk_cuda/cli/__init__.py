"""The commands of `python -m rdk_cuda`: the options of each, and what they share."""
