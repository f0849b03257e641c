"""The strategies that plots name are those that the operators take."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from profiling.cases import PAIR, Case
from profiling.strategy import ALONE, SPLIT, WHOLE, Place, strategy, switches

ROOT = Path(__file__).resolve().parents[2]
VERIFY = Case("verify", "bfloat16", draft_length=5, acceptance="high")
DRAFT = Case("draft", "bfloat16")
GPU = Place(multiprocessors=132, threads=8)

COUNTS_WORKERS = """
#include <cstdio>
#include "csrc/cpu/threads.h"

int64_t workers = 1;  // of all rows together, and of each
void run(int64_t count, const std::function<void()>&) { workers = count; }

int main(int, char** argv) {
  const rdk::cpu::Threads threads{std::atoll(argv[1]), run};
  for (int64_t rows : {1, 2, 3, 8, 40}) {
    for (int64_t columns : {1024, 4096, 8192, 32768, 32769, 128256}) {
      bool split = false;
      workers = 1;
      rdk::cpu::for_each_row<int>(threads, rows, columns,
                                  [&](int64_t, const rdk::cpu::Threads& for_row, int*) {
                                    split |= for_row.count > 1;
                                  });
      std::puts(split ? "rows split" : workers > 1 ? "a row each" : "one thread");
    }
  }
}
"""


def test_on_a_cpu_they_are_those_of_for_each_row(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "counts.cpp").write_text(f"#include <cstdlib>\n{COUNTS_WORKERS}")
    program = tmp_path / "counts"
    flags = ["-std=c++17", f"-I{ROOT}", "-o", str(program)]
    subprocess.run([compiler, str(tmp_path / "counts.cpp"), *flags], check=True)
    for threads in (1, 2, 7):
        ran = subprocess.run([program, str(threads)], capture_output=True, text=True, check=True)
        shapes = product((1, 2, 3, 8, 40), (1024, 4096, 8192, 32768, 32769, 128256))
        expected = [
            strategy(replace(VERIFY, batch=rows, target_size=columns), Place(None, threads))
            for rows, columns in shapes
        ]
        assert ran.stdout.splitlines() == expected
        assert len(set(expected)) == (1 if threads == 1 else 3)


def test_on_a_gpu_they_follow_what_the_plans_compare() -> None:
    for operator, rows in (("draft", "rows"), ("verify", "sequences")):
        source = (ROOT / f"csrc/plans/{operator}.cpp").read_text()
        assert f"many = params.{rows} >= machine.multiprocessors;" in source
    for case in (DRAFT, VERIFY):
        assert strategy(replace(case, batch=131), GPU) == SPLIT
        assert strategy(replace(case, batch=132), GPU) == WHOLE


def test_a_change_is_found_at_the_first_size_of_the_new_strategy() -> None:
    assert switches(VERIFY, "batch", (8, 32, 128, 512), GPU) == [
        {"size": 132, "from": SPLIT, "to": WHOLE}
    ]
    along = switches(DRAFT, "draft_size", (1024, 2048, 8192, 32768), Place(None, 2))
    assert along == [{"size": 4097, "from": ALONE, "to": WHOLE}]  # 8 rows: 32,776 columns
    (both,) = switches(replace(VERIFY, operator=PAIR), "batch", (64, 256), GPU)
    assert both["to"] == f"draft: {WHOLE}, verify: {WHOLE}"


def test_nothing_is_said_of_operators_that_have_one_strategy() -> None:
    assert switches(Case("gather_logits", "float32"), "batch", (1, 1000), GPU) == []
    assert switches(Case("redistribute", "float32"), "batch", (1, 1000), GPU) == []
