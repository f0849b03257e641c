"""Writes every table with measured figures that stands in a document, from the committed results.

python -m profiling.documents            fills README.md and docs/*.md, and draws docs/gain.png
python -m profiling.documents --check    changes nothing; status 1 if something differs

A table, with the sentences around it that quote figures, stands between the comments
`<!-- table NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import sys

from .chart import draw
from .pages import CHART, chart_figures, differing, filled
from .results import ROOT


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.documents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; status 1 on a difference"
    )
    check = parser.parse_args(arguments).check
    found = differing()
    for page in found:
        name = page.relative_to(ROOT)
        print(f"{name} differs from the results" if check else f"{name} written")
        if not check and page != CHART:
            page.write_text(filled(page.read_text(encoding="utf-8"), page), encoding="utf-8")
    if not check and CHART in found:
        draw(chart_figures(), CHART)
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
