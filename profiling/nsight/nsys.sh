#!/usr/bin/env bash
# A timeline of a decoder on a GPU, with Nsight Systems, and its tables of ranges and kernels.
#
#   profiling/nsight/nsys.sh [FOLDER] [OPTIONS OF python -m profiling.nsight.decoding_run]
#
# Writes decoding.nsys-rep (for the Nsight Systems window) and timeline.txt into FOLDER
# (nsys-output). Kernels inside CUDA graphs are recorded one by one.
# `python -m profiling.nsight.decoding_run --help` lists the options. PYTHON (python3) is the Python to run.
set -euo pipefail
profiler=nsys product='Nsight Systems' folder=nsys-output
otherwise='python -m profiling.nsight.torch_profile'
. "$(dirname "${BASH_SOURCE[0]}")/start.sh"
"$python" -c 'import nvtx' 2>/dev/null || fail "the nvtx package is missing: pip install nvtx"

nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --sample=none --cpuctxsw=none \
  --capture-range=cudaProfilerApi --capture-range-end=stop --force-overwrite=true \
  --output="$folder/decoding" \
  "$python" -m profiling.nsight.decoding_run --device cuda "$@"
nsys stats --force-export=true --report nvtx_pushpop_sum,nvtx_kern_sum,cuda_gpu_kern_sum \
  "$folder/decoding.nsys-rep" | tee "$folder/timeline.txt"
