#!/usr/bin/env bash
# What bounds each kernel, by Nsight Compute: one warm launch of every operator at a few shapes, and
# a table of them with a sentence on each (ncu_report.py).
#
#   profiling/ncu.sh [FOLDER] [OPTIONS OF python -m profiling.one_launch]
#
# Writes kernels.csv, cases.json, kernels.md and kernels.json into FOLDER (ncu-output). The clocks are left as
# they are, as in the benchmark; caches are, too, so that a kernel finds what the one before left.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=ncu-output
if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
fi
python=${PYTHON:-python3}

fail() {
  echo "profiling/ncu.sh: $*" >&2
  exit 2
}
command -v ncu >/dev/null || fail "ncu is not on the PATH. It comes with the CUDA toolkit, or as\
 'Nsight Compute' from developer.nvidia.com; without it: profiling/bench.py --device cuda"
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
  || fail "torch sees no GPU; kernels can only be profiled on one"

mkdir -p "$folder"
ncu --profile-from-start=off --clock-control=none --cache-control=none --target-processes=all \
  --section=SpeedOfLight --section=MemoryWorkloadAnalysis --section=Occupancy \
  --section=LaunchStats --section=WarpStateStats \
  --metrics="$("$python" -m profiling.ncu_report --metrics)" \
  --page=raw --csv --log-file="$folder/kernels.csv" \
  "$python" -m profiling.one_launch --cases "$folder/cases.json" "$@" \
  || fail "ncu failed; ERR_NVGPUCTRPERM in $folder/kernels.csv means that reading the GPU's\
 counters needs root or the driver option NVreg_RestrictProfilingToAdminUsers=0"
"$python" -m profiling.ncu_report "$folder/kernels.csv" --cases "$folder/cases.json" --json "$folder/kernels.json" \
  | tee "$folder/kernels.md"
