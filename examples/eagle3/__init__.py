"""Train an EAGLE-3 drafter for any model of Hugging Face: `python -m examples.eagle3 --help`."""
