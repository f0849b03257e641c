# What nsys.sh and ncu.sh begin with; each sources this file with its own arguments. They set
# profiler and product (the program and its name), folder (the default), and otherwise (what to do
# without it).
case " $* " in
  *" --help "* | *" -h "*)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
fi
python=${PYTHON:-python3}

fail() {
  echo "profiling/nsight/$profiler.sh: $*" >&2
  exit 2
}
command -v "$profiler" >/dev/null || fail "$profiler is not on the PATH. It comes with the CUDA\
 toolkit, or as '$product' from developer.nvidia.com; without it: $otherwise"
"$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
  || fail "torch sees no GPU; it is needed to profile kernels. On a CPU: $otherwise"

mkdir -p "$folder"
