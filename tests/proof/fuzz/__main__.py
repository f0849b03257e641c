"""Call the operators with random arguments, under AddressSanitizer and UBSan.

python -m tests.proof.fuzz --seed 0 --count 100000              what the test command does
python -m tests.proof.fuzz --seed 1 --count 1000000 --log LOG   about ten minutes on two cores
python -m tests.proof.fuzz --seed 0 --only 4711                 one argument set, shown
python -m tests.proof.fuzz --implementation cuda --count 5000   the CUDA kernels, in the emulator

An argument set is a function of seed, operators and index. LOG is JSON: how often each operator
accepted its arguments and how often it refused them with which error, and every failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .calls import make_call
from .driver import ALL_OPERATORS, Fuzzer, Log, build


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100_000, help="argument sets (default: 10^5)")
    parser.add_argument("--operator", choices=ALL_OPERATORS, help="default: all")
    parser.add_argument("--implementation", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--log", type=Path, help="file for the results (default: none)")
    parser.add_argument("--only", type=int, metavar="K", help="argument set K alone")
    options = parser.parse_args()
    operators = [options.operator] if options.operator else ALL_OPERATORS
    indices = range(options.count)
    if options.only is not None:
        print(make_call(options.seed, options.only, tuple(operators)))
        indices = range(options.only, options.only + 1)
    log = Log(options.seed, options.implementation, operators)
    Fuzzer(log, build(options.implementation)).run(indices)
    for failure in log.failures:
        print(f"--only {failure['index']}: {failure['what']}\n")
    print(log.table())
    if options.log is not None:
        log.write(options.log)
    return 1 if log.failures else 0


if __name__ == "__main__":
    sys.exit(main())
