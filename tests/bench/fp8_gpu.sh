#!/bin/sh
# Checks and times products of 8-bit floats on the GPU in this machine, in less than six minutes.
#
# Usage: fp8_gpu.sh BUILD [MODEL.onnx]
#
# BUILD is a build folder with CUDA; MODEL an export of a language model whose batch is fixed, else a Llama of 1.1 G
# parameters that write_llama.py writes, batch 16 of 1024 tokens, with drawn weights. First the kernels against their
# references, to the bit for codes and scales, and a golden case beside PyTorch's numbers; then kernels beside a copy and
# the products beside those of bf16; then losses of 300 steps beside bf16's; then, bf16 and fp8 with a scale for each
# tensor, row and block in turns, the milliseconds of a step as predicted and as measured, and the bytes as promised and as
# held.
set -u
build=$1 model=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
check() { "$@" || { echo "FAILED: $*"; failed=1; }; }
check "$build/bin/plimsoll_cuda_tests" --test-case='8-bit floats*'
check "$build/bin/plimsoll_cuda_tests" --test-case='every CUDA kernel*' --subcase='f8_scale,to_f8,to_scaled_f8,linear_f8,cublaslt*,words,rows,blocks,tiles'
check python3 "$here/../golden/check_golden.py" "$build/bin/plimsoll" gpt2 llama_gqa --device auto --precision fp8
"$build/bin/cuda_kernel_speeds" f8_scale to_f8 to_scaled_f8 linear_f8 linear linear_dw
check timeout 120 python3 "$here/fp8_losses.py" "$build/bin/plimsoll" --device auto --scales tensor,rows,blocks
if [ -z "$model" ]; then
  model="$folder/llama.onnx"
  check python3 "$here/write_llama.py" "$model" --batch 16
fi
python3 - "$folder/tokens.bin" <<'PYTHON'
import random, struct, sys
random.seed(1)
open(sys.argv[1], "wb").write(struct.pack("<400000H", *(random.randrange(30000) for _ in range(400000))))
PYTHON
ways="bf16 tensor rows blocks"
for way in $ways; do
  set -- --precision bf16
  if [ $way != bf16 ]; then
    echo "scales = $way" >"$folder/$way.precision"
    set -- --precision fp8 --precision-file "$folder/$way.precision"
  fi
  check "$build/bin/plimsoll" compile "$model" -o "$folder/$way.plan" --device auto "$@" --lr 1e-4 >"$folder/compile.log"
  echo "$way: $(tail -1 "$folder/compile.log")"
done
for round in 1 2; do
  for way in $ways; do
    check "$build/bin/plimsoll" run "$folder/$way.plan" --init 0 --init-std 0.02 --data "$folder/tokens.bin" --steps 12 \
      --metrics "$folder/$way.$round.jsonl" >"$folder/run.log" 2>&1
    grep -h 'steps, loss\|^promised\|error\|^FAILED' "$folder/run.log" | sed "s/^/$way: /"
  done
done
python3 - "$folder" $ways <<'PYTHON' || failed=1
import json, pathlib, statistics, sys
folder = pathlib.Path(sys.argv[1])
step = {}
for way in sys.argv[2:]:
    lines = [json.loads(line) for each in sorted(folder.glob(f"{way}.*.jsonl")) for line in each.read_text().splitlines()[4:]]
    step[way] = statistics.median(line["step_ms"] for line in lines)
    print(f"{way}: {step[way]:.2f} ms a step, {step['bf16'] / step[way]:.3f} times as fast as bf16, last loss {lines[-1]['loss']:.4f}")
print("the aim is 1.30 with a scale for each tensor")
PYTHON
exit $failed
