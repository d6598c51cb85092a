#!/bin/sh
# Checks and times adapters and quantised weights on the GPU in this machine.
#
# Usage: adapters_gpu.sh BUILD MODEL.onnx [SEQUENCE]
#
# BUILD is a build folder with CUDA, MODEL an export of a language model with an open dimension "batch". First every kernel
# against its reference, then those of codes and magnitudes beside a copy, then a line for each job: tokens per second, and the memory that
# the process holds. Weights are drawn, since neither depends on them.
set -e
build=$1 model=$2 sequence=${3:-512}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$build/bin/plimsoll_cuda_tests" --test-case='*kernel*'
"$build/bin/cuda_kernel_speeds" dequantize dequantize_linear dora_scale
python3 - "$folder/tokens.bin" <<'PYTHON'
import random, struct, sys
random.seed(1)
open(sys.argv[1], "wb").write(struct.pack("<400000H", *(random.randrange(30000) for _ in range(400000))))
PYTHON
job() {
  name=$1
  shift
  if "$build/bin/plimsoll" compile "$model" -o "$folder/job.plan" --device auto --precision bf16 "$@" >"$folder/compile.log" 2>&1; then
    "$build/bin/plimsoll" run "$folder/job.plan" --init 0 --init-std 0.02 --data "$folder/tokens.bin" --steps 12 --lr 2e-4 >"$folder/run.log" 2>&1 || true
    echo "$name: $(grep -h 'steps, loss' "$folder/run.log" || tail -1 "$folder/run.log")"
    grep -h '^promised' "$folder/run.log" || true
  else
    echo "$name: $(tail -1 "$folder/compile.log")"
  fi
}
lora="--lora-rank 8 --lora-alpha 16"
job "LoRA r 8, 24 GiB, batch 16 x $sequence" --dim batch=16 --budget 24GiB $lora
job "LoRA r 32, 24 GiB, batch 16 x $sequence" --dim batch=16 --budget 24GiB --lora-rank 32
job "LoRA r 8, dropout 0.05, 24 GiB, batch 16 x $sequence" --dim batch=16 --budget 24GiB $lora --lora-dropout 0.05
job "QLoRA r 8, 24 GiB, batch 16 x $sequence" --dim batch=16 --budget 24GiB $lora --quantize nf4
job "QLoRA r 8, 14 GiB, batch 6 x $sequence" --dim batch=6 --budget 14GiB $lora --quantize nf4
job "QLoRA r 8, 12 GiB, batch 6 x $sequence" --dim batch=6 --budget 12GiB $lora --quantize nf4
job "int8 base, 24 GiB, batch 16 x $sequence" --dim batch=16 --budget 24GiB $lora --quantize int8
job "DoRA r 8, 24 GiB, batch 16 x $sequence" --dim batch=16 --budget 24GiB $lora --dora
job "QDoRA r 8, 14 GiB, batch 6 x $sequence" --dim batch=6 --budget 14GiB $lora --dora --quantize nf4
