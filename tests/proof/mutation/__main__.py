"""Break the kernels on purpose and see tests fail.

python -m tests.proof.mutation               those of files that changed lately, as .ci/run does
python -m tests.proof.mutation --all
python -m tests.proof.mutation --list
python -m tests.proof.mutation "NAME" ...      those whose name contains one of these
"""

from __future__ import annotations

import argparse
import sys

from .mutants import MUTANTS
from .running import line, of_changed_files, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--list", action="store_true", help="name them, run none")
    options = parser.parse_args()
    chosen = [
        mutant for mutant in MUTANTS if options.all or any(n in mutant.name for n in options.names)
    ]
    if options.names and not chosen:
        parser.error("no mutant has such a name; see --list")
    if options.list:
        for mutant in chosen or MUTANTS:
            print(f"{mutant.name}  ({mutant.file})")
        return 0
    outcomes = []
    for outcome in run(chosen or of_changed_files()):
        outcomes.append(outcome)
        print(line(outcome), flush=True)
    caught = sum(outcome.caught for outcome in outcomes)
    print(f"{caught} of {len(outcomes)} mutants caught")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
