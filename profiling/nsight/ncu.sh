#!/usr/bin/env bash
# What bounds each kernel, by Nsight Compute: a launch of every operator at a few shapes.
#
#   profiling/nsight/ncu.sh [FOLDER] [OPTIONS OF python -m profiling.nsight.one_launch]
#
# Writes kernels.ncu-rep (for the Nsight Compute window) and kernels.txt into FOLDER (ncu-output):
# for each case its time, memory traffic, occupancy and stalls, and what Nsight Compute says bounds
# it. As in the benchmark, clocks are left as they are, and caches are flushed before every pass.
# `python -m profiling.nsight.one_launch --help` lists the options. PYTHON (python3) is the Python to run.
set -euo pipefail
profiler=ncu product='Nsight Compute' folder=ncu-output
otherwise='python -m profiling.bench'
. "$(dirname "${BASH_SOURCE[0]}")/start.sh"

ncu --profile-from-start=off --clock-control=none --cache-control=all --target-processes=all \
  --section=SpeedOfLight --section=MemoryWorkloadAnalysis --section=Occupancy \
  --section=LaunchStats --section=WarpStateStats \
  --nvtx --force-overwrite --export="$folder/kernels" \
  "$python" -m profiling.nsight.one_launch "$@" \
  || fail "ncu failed; ERR_NVGPUCTRPERM above means that reading the GPU's counters needs root or\
 the driver option NVreg_RestrictProfilingToAdminUsers=0"
ncu --import="$folder/kernels.ncu-rep" --page=details --print-nvtx-rename=kernel \
  | tee "$folder/kernels.txt"
