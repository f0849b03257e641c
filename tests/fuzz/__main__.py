"""Call the operators with random arguments, under AddressSanitizer and UBSan.

python -m tests.fuzz --seed 0 --count 100000                what the test command does
python -m tests.fuzz --seed 1 --count 1000000 --resume LOG  kept in LOG; again to continue
python -m tests.fuzz --seed 0 --only 4711                   one argument set, shown
python -m tests.fuzz --implementation cuda --count 5000     the CUDA kernels, in the emulator

An argument set is a function of seed, operators and index. LOG is JSON: how often each operator
accepted its arguments and how often it refused them with which error, and every failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .calls import make_call
from .driver import (
    ALL_OPERATORS,
    Fuzzer,
    Log,
    LogError,
    build,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100_000, help="argument sets (default: 10^5)")
    parser.add_argument("--operator", choices=ALL_OPERATORS, help="default: all")
    parser.add_argument("--implementation", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, help="default: one for each core")
    parser.add_argument(
        "--resume", type=Path, metavar="LOG", help="write LOG; continue if it is there"
    )
    parser.add_argument("--only", type=int, metavar="K", help="argument set K alone")
    options = parser.parse_args()
    operators = [options.operator] if options.operator else ALL_OPERATORS
    try:
        log = Log.new(options.seed, options.implementation, operators)
        if options.resume is not None:
            log = Log.continuing(options.resume, options.seed, options.implementation, operators)
    except (LogError, OSError, ValueError) as error:
        parser.error(str(error))
    fuzzer = Fuzzer(log, build(options.implementation), path=options.resume)
    if options.processes is not None:
        fuzzer.processes = options.processes
    if options.only is not None:
        print(make_call(options.seed, options.only, tuple(operators)))
        fuzzer.run(iter([(options.only, options.only + 1)]))
    else:
        fuzzer.progress = sys.stderr
        try:
            fuzzer.run(log.untried(options.count))
        except KeyboardInterrupt:
            kept = f"kept in {options.resume}" if options.resume else "not kept without --resume"
            print(f"\ninterrupted after {log.sets} sets, {kept}", file=sys.stderr)
            return 130
        print(file=sys.stderr)
    for failure in log.failures:
        print(f"--only {failure['index']}: {failure['what']}\n")
    print(log.table())
    return 1 if log.failures else 0


if __name__ == "__main__":
    sys.exit(main())
