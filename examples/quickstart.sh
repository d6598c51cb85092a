#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds, compiles a small GPT that PyTorch exported
# into a training plan, shows the plan's memory and trains it, on the GPU where one is here and on the CPU elsewhere.
# Minutes on two cores, most of them the build.
#
# Usage: [PLIMSOLL=PROGRAM] examples/quickstart.sh [STEPS]     with PROGRAM nothing is installed or built
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/install_dependencies.sh

steps=${1:-400}
plimsoll=${PLIMSOLL:-build/release/bin/plimsoll}
example=examples/quickstart
out=build/quickstart

say() { printf '\n== %s\n' "$*"; }

# A bar for every tenth of the run: the mean loss over it.
draw_losses() {
  awk -F'"loss": *' -v steps="$steps" '
    NF > 1 {
      sum += $2; n++; seen++
      if (seen == 1) first = sum
      if (seen == 1 || seen >= steps * bars / 10) {
        bar = ""
        for (i = 0; i < 50 * sum / n / first; i++) bar = bar "#"
        printf "  step %5d  loss %6.3f  %s\n", seen, sum / n, bar
        sum = n = 0
        while (seen >= steps * bars / 10) bars++
      }
    }' "$1"
}

build() {
  local targets=(plimsoll)
  say "1/5 what the build needs"
  install_dependencies "${build_packages[@]}"

  say "2/5 build"
  if nvidia-smi >/dev/null 2>&1; then
    cmake --preset release -D PLIMSOLL_CUDA_ARCHITECTURES=native
    if cmake --build --preset release --target help | grep '^plimsoll_cuda:' >/dev/null; then
      targets+=(plimsoll_cuda)
    else
      echo "there is a GPU, but what its backend is built with is not (see above): training on the CPU"
    fi
  else
    cmake --preset release
  fi
  cmake --build --preset release --target "${targets[@]}"
}

if [ -z "${PLIMSOLL:-}" ]; then build; fi

say "3/5 compile: from the exported graph to a training plan"
mkdir -p "$out"
"$plimsoll" compile "$example/small_gpt.onnx" -o "$out/small_gpt.plan" --dim batch=8 --device auto \
  --optimizer adamw --lr 1e-3 --beta2 0.99 --weight-decay 0.01

say "4/5 what the plan puts where"
"$plimsoll" inspect "$out/small_gpt.plan"

say "5/5 train $steps steps on Moby-Dick, a character a token"
"$plimsoll" run "$out/small_gpt.plan" --weights "$example/small_gpt.onnx" --data "$example/tokens.bin" \
  --steps "$steps" --seed 1 --metrics "$out/metrics.jsonl" --log "$out/log" \
  --save "$out/small_gpt.safetensors" --save "$out/small_gpt.onnx"
draw_losses "$out/metrics.jsonl"

cat <<END

The trained weights are in $out/small_gpt.safetensors and, with the graph, in $out/small_gpt.onnx.
Try next:
  $plimsoll watch $out/log                          the run over its plan, as a page in a browser
  $plimsoll inspect $out/small_gpt.plan --why loss             why a value lies where it lies
  $plimsoll compile $example/small_gpt.onnx -o $out/h200.plan --dim batch=512 --device h200
                                                       a plan for a GPU that need not be here; inspect it
  $plimsoll check YOUR_MODEL.onnx                              what stands in the way of training your own export
END
