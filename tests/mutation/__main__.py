"""Break the CUDA kernels on purpose and see tests fail.

python -m tests.mutation                 the mutants of the day, as in the test command
python -m tests.mutation --all
python -m tests.mutation --list
python -m tests.mutation "NAME" ...      those whose name contains one of these
"""

from __future__ import annotations

import argparse
import sys

from .mutants import MUTANTS
from .running import (
    line,
    of_the_day,
    run,
    total,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--list", action="store_true", help="name them, run none")
    parser.add_argument("--count", type=int, default=4, help="mutants of the day (default: 4)")
    options = parser.parse_args()
    if options.list:
        for mutant in MUTANTS:
            print(f"{mutant.name}  ({mutant.file})")
        return 0
    chosen = of_the_day(options.count)
    if options.all:
        chosen = list(MUTANTS)
    elif options.names:
        chosen = [m for m in MUTANTS if any(name in m.name for name in options.names)]
        if not chosen:
            parser.error("no mutant has such a name; see --list")
    outcomes = []
    for outcome in run(chosen):
        outcomes.append(outcome)
        print(line(outcome), flush=True)
    print(total(outcomes))
    return 0 if all(outcome.caught for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
