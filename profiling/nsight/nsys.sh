#!/usr/bin/env bash
# A timeline of a decoder on a GPU with Nsight Systems, and its tables (nsys_report.py).
#
#   profiling/nsight/nsys.sh [FOLDER] [OPTIONS OF python -m profiling.nsight.decoding_run]
#
# Writes decoding.nsys-rep (for the Nsight Systems window), decoding.sqlite, timeline.md and
# timeline.json into FOLDER (nsys-output). Kernels inside of CUDA graphs are recorded one by one.
# `python -m profiling.nsight.decoding_run --help` lists the options. PYTHON (python3) is the Python to run.
set -euo pipefail
case " $* " in
  *" --help "* | *" -h "*)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=nsys-output
if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
fi
python=${PYTHON:-python3}

fail() {
  echo "profiling/nsight/nsys.sh: $*" >&2
  exit 2
}
command -v nsys >/dev/null || fail "nsys is not on the PATH. It comes with the CUDA toolkit, or as\
 'Nsight Systems' from developer.nvidia.com; without it: python -m profiling.nsight.torch_profile"
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
  || fail "torch sees no GPU; on a CPU: python -m profiling.nsight.torch_profile"
"$python" -c 'import nvtx' 2>/dev/null || fail "the nvtx package is missing: pip install nvtx"

mkdir -p "$folder"
nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --sample=none --cpuctxsw=none \
  --capture-range=cudaProfilerApi --capture-range-end=stop --force-overwrite=true \
  --output="$folder/decoding" \
  "$python" -m profiling.nsight.decoding_run --device cuda "$@"
nsys export --type=sqlite --force-overwrite=true --output="$folder/decoding.sqlite" \
  "$folder/decoding.nsys-rep"
"$python" -m profiling.nsight.nsys_report "$folder/decoding.sqlite" --json "$folder/timeline.json" \
  | tee "$folder/timeline.md"
