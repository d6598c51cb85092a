#!/usr/bin/env bash
# Everything that needs a card, on a machine that has one; elsewhere it says so and exits 77, which counts as skipped.
#
# Usage: tests/cuda/run.sh [--build DIR] [--out FILE] [STEP ...]
#   DIR   holds plimsoll, plimsoll_cuda_tests, collective_check, cuda_allocations, cuda_workspaces, cuda_kernel_speeds in bin and lib/libplimsoll_cuda.so; default build/ci
#   FILE  takes what is printed; default cuda_results.txt
#   STEP  card kernels allocations workspaces golden ranks lost-ranks same-bits checkpoints sanitizer budgets speeds bench; default all of them
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=build/ci
out=cuda_results.txt
steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -*) sed -n 's/^# \?//; 2,8p' tests/cuda/run.sh; exit 2 ;;
    *) steps+=("$1"); shift ;;
  esac
done
[ "${#steps[@]}" -gt 0 ] || steps=(card kernels allocations workspaces golden ranks lost-ranks same-bits checkpoints sanitizer budgets speeds bench)
plimsoll=$build/bin/plimsoll
cuda_tests=$build/bin/plimsoll_cuda_tests
example=examples/quickstart
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

if ! nvidia-smi >/dev/null 2>&1; then
  echo "skipped: no NVIDIA card here"
  exit 77
fi

# verdict NAME STATUS
verdict() {
  if [ "$2" -eq 0 ]; then echo "[$1] passed"; else echo "[$1] FAILED"; failed=$((failed + 1)); fi
}

card() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,power.draw --format=csv,noheader
  "$plimsoll" devices --measure
}

kernels() { "$cuda_tests"; }

# None on the card and none pinned, once a session has started.
allocations() { "$build/bin/cuda_allocations"; }

# What cuDNN takes on this card, of which a description is left beside the results: tests/cuda/workspaces/h200.json is an H200's.
workspaces() {
  "$build/bin/cuda_workspaces" --describe "$out.cudnn.json" && "$build/bin/cuda_workspaces" auto "$out.cudnn.json"
}

# Two ranks, on as many cards; left out where there is one.
ranks() {
  [ "$(nvidia-smi --list-gpus | wc -l)" -ge 2 ] || { echo "one card"; return 0; }
  # Every collective by itself, and those of pipelines: transfers, and the loss that one stage broadcasts.
  python3 -B tests/support/start_ranks.py 2 "$build/bin/collective_check" --device h200 || return 1
  local zero schedule
  for schedule in 1f1b v; do
    python3 -B tests/golden/check_golden.py "$plimsoll" mlp gpt2 --mesh stage=2 --schedule "$schedule" --device auto --tolerance 1e-3 --loss-tolerance 1e-3 --norm-tolerance 1e-3 || return 1
  done
  for zero in 0 1 2 3; do
    python3 -B tests/golden/check_golden.py "$plimsoll" mlp gpt2 unet vit --ranks 2 --zero "$zero" --device auto --tolerance 1e-3 --loss-tolerance 1e-3 --norm-tolerance 1e-3 || return 1
  done
  python3 -B tests/bench/ranks_gpu.py "$plimsoll" gpt2_b16 gpt2_xl_b8
}

# Ranks killed and stopped at random moments end the others, and ranks that share the samples predict what one does.
lost_ranks() {
  local cards
  cards=$(nvidia-smi --list-gpus | wc -l)
  [ "$cards" -ge 2 ] || { echo "one card"; return 0; }
  python3 -B tests/cli/ranks_commands_test.py "$plimsoll" --cards "$cards" && python3 -B tests/cli/ranks_test.py "$plimsoll" --cards "$cards"
}

golden() {
  python3 -B tests/golden/check_golden.py "$plimsoll" --device auto --tolerance 1e-3 --loss-tolerance 1e-3 --norm-tolerance 1e-3 &&
    python3 -B tests/golden/check_golden.py "$plimsoll" --device auto --precision bf16 &&
    python3 -B tests/golden/check_golden.py "$plimsoll" --device auto --precision fp16 --loss-scale 16384
}

# The same plan, seed and card twice: the same bits.
same_bits() {
  "$plimsoll" compile "$example/small_gpt.onnx" -o "$work/a.plan" --dim batch=256 --device auto --precision bf16 || return 1
  for run in 1 2; do
    "$plimsoll" run "$work/a.plan" --weights "$example/small_gpt.onnx" --data "$example/tokens.bin" --steps 50 --seed 3 \
      --save "$work/$run.safetensors" || return 1
  done
  cmp "$work/1.safetensors" "$work/2.safetensors"
}

# A run killed and resumed beside one that was never stopped, and what a checkpoint costs a step. MODEL may name a larger model, such as GPT-2 124M.
checkpoints() { python3 -B tests/cuda/check_checkpoints.py "$plimsoll" "${MODEL:-$example/small_gpt.onnx}" --dim batch=16; }

# The op samples under memcheck, and our kernels under synccheck and racecheck. Under the latter, 16-bit products of cuBLASLt and convolutions
# of cuDNN read what is not mapped, PyTorch's as ours; what we launch beside cuDNN (space-to-depth, space-to-batch) shares no memory that could race.
sanitizer() {
  local check="compute-sanitizer --error-exitcode 1 --print-limit 20" ours="--kernel-name kernel_substring=plimsoll"
  $check --tool memcheck "$cuda_tests" --test-case="*stored as given*" &&
    $check --tool synccheck $ours "$cuda_tests" --test-case="*stored as given*" &&
    $check --tool racecheck $ours "$cuda_tests" --subcase-exclude="cublaslt*,cudnn*"
}

budgets() { python3 -B tests/cuda/check_budgets.py "$plimsoll"; }

# Every kernel against a copy on the same card.
speeds() { "$build/bin/cuda_kernel_speeds" --json "$out.speeds.json"; }

bench() { python3 -B tests/bench/compare_pytorch_gpu.py "$plimsoll" --json "$out.json"; }

{
  for step in "${steps[@]}"; do
    echo "== $step"
    "${step//-/_}"
    verdict "$step" $?
  done
  echo "$failed failed"
} 2>&1 | tee "$out"
grep -q '^0 failed$' "$out"
