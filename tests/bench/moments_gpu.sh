#!/bin/sh
# Checks and times small optimizer states on the GPU in this machine.
#
# Usage: moments_gpu.sh BUILD [MODEL.onnx]
#
# BUILD is a build folder with CUDA, MODEL an export of a language model with an open dimension "batch", such as GPT-2 1.5B.
# First every kernel against its reference and updates launched together against those launched one by one, then the
# updates beside a copy. Then 500 steps of the quickstart's model with each form of its moments, whose losses should be
# within half a percent, and for MODEL the memory and the time of a step with each form.
set -e
build=$1 model=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$build/bin/plimsoll_cuda_tests" --test-case='*kernel*,updates and casts*'
"$build/bin/cuda_kernel_speeds" adamw
"$build/bin/cuda_kernel_speeds" adamw_8bit
job() {
  name=$1 onnx=$2 tokens=$3 steps=$4 first=$5
  shift 5
  if "$build/bin/plimsoll" compile "$onnx" -o "$folder/job.plan" --device auto --precision bf16 --lr 3e-4 "$@" >"$folder/compile.log" 2>&1; then
    "$build/bin/plimsoll" run "$folder/job.plan" $first --data "$tokens" --steps "$steps" >"$folder/run.log" 2>&1 || true
    echo "$name: $(grep -h 'steps, loss' "$folder/run.log" || tail -1 "$folder/run.log")"
    grep -h '^promised' "$folder/run.log" || true
  else
    echo "$name: $(tail -1 "$folder/compile.log")"
  fi
}
small="$here/examples/quickstart"
for form in f32 bf16 8bit; do
  job "small GPT, moments in $form" "$small/small_gpt.onnx" "$small/tokens.bin" 500 "--weights $small/small_gpt.onnx" --dim batch=8 --moments $form
done
job "small GPT, moments in 8bit, no masters" "$small/small_gpt.onnx" "$small/tokens.bin" 500 "--weights $small/small_gpt.onnx" --dim batch=8 --moments 8bit --master-weights off
[ -n "$model" ] || exit 0
python3 - "$folder/tokens.bin" <<'PYTHON'
import random, struct, sys
random.seed(1)
open(sys.argv[1], "wb").write(struct.pack("<400000H", *(random.randrange(30000) for _ in range(400000))))
PYTHON
for form in f32 bf16 8bit; do
  job "$(basename "$model"), moments in $form" "$model" "$folder/tokens.bin" 12 "--init 0" --dim batch=4 --moments $form
done
job "$(basename "$model"), moments in 8bit, no masters" "$model" "$folder/tokens.bin" 12 "--init 0" --dim batch=4 --moments 8bit --master-weights off
