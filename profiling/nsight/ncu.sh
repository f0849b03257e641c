#!/usr/bin/env bash
# What bounds each kernel, by Nsight Compute: a launch of every operator, after others, at a few
# shapes, and a table of them with a sentence on each (ncu_report.py).
#
#   profiling/nsight/ncu.sh [FOLDER] [OPTIONS OF python -m profiling.nsight.one_launch]
#
# Writes kernels.csv, cases.json, kernels.md and kernels.json into FOLDER (ncu-output). As in the
# benchmark, clocks are left as they are and caches are cold: they are flushed before every pass.
# `python -m profiling.nsight.one_launch --help` lists the options. PYTHON (python3) is the Python to run.
set -euo pipefail
case " $* " in
  *" --help "* | *" -h "*)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=ncu-output
if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
fi
python=${PYTHON:-python3}

fail() {
  echo "profiling/nsight/ncu.sh: $*" >&2
  exit 2
}
command -v ncu >/dev/null || fail "ncu is not on the PATH. It comes with the CUDA toolkit, or as\
 'Nsight Compute' from developer.nvidia.com; without it: python -m profiling.bench --device cuda"
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
  || fail "torch sees no GPU; kernels can only be profiled on one"

mkdir -p "$folder"
ncu --profile-from-start=off --clock-control=none --cache-control=all --target-processes=all \
  --section=SpeedOfLight --section=MemoryWorkloadAnalysis --section=Occupancy \
  --section=LaunchStats --section=WarpStateStats \
  --metrics="$("$python" -m profiling.nsight.ncu_report --metrics)" \
  --page=raw --csv --log-file="$folder/kernels.csv" \
  "$python" -m profiling.nsight.one_launch --cases "$folder/cases.json" "$@" \
  || fail "ncu failed; ERR_NVGPUCTRPERM in $folder/kernels.csv means that reading the GPU's\
 counters needs root or the driver option NVreg_RestrictProfilingToAdminUsers=0"
"$python" -m profiling.nsight.ncu_report "$folder/kernels.csv" --cases "$folder/cases.json" --json "$folder/kernels.json" \
  | tee "$folder/kernels.md"
