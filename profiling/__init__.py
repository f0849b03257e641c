"""How fast the operators are: `python profiling/bench.py --help`. Not part of the package."""
