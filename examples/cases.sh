#!/usr/bin/env bash
# Prints the results in docs/cases.md: cases.sh PLIMSOLL FOLDER. FOLDER holds the exports. It takes some minutes.
set -euo pipefail
plimsoll=$(realpath "$1") models=$2
plan=$(mktemp --suffix=.plan)
trap 'rm -f "$plan"' EXIT

ask() {
  echo "\$ plimsoll compile $*"
  (cd "$models" && "$plimsoll" compile "$@" -o "$plan" 2>&1 | grep -v '^plimsoll: [a-z ]*[0-9.]* s$\|note:') || true
}

card=(--device rtx4090 --precision bf16)
ask vit_l16_opset20.onnx "${card[@]}" --max-batch --recompute off --offload off
for batch in 192 256 320; do ask vit_l16_opset20.onnx "${card[@]}" --batch $batch; done
ask vit_l16_opset20.onnx "${card[@]}" --batch 256 --split off

loss=(--loss cross-entropy:upsample_bilinear2d_1:labels)
ask deeplabv3_resnet101_opset20.onnx "${card[@]}" "${loss[@]}" --max-batch --recompute off --offload off
for batch in 36 48; do ask deeplabv3_resnet101_opset20.onnx "${card[@]}" "${loss[@]}" --batch $batch; done

ask gpt2_124m_opset20.onnx --dim batch=16 "${card[@]}" --pareto
for budget in 2GiB 3GiB 6GiB 8GiB 12GiB 16GiB 24GiB; do ask gpt2_124m_opset20.onnx --dim batch=16 "${card[@]}" --budget $budget; done
ask gpt2_124m_opset20.onnx --dim batch=16 "${card[@]}" --budget 1GiB

# The large batches take minutes.
for batch in 1 2 4 8 24 32 40 48 64 96; do ask mistral_7b_opset23.onnx "${card[@]}" --dim batch=$batch --host-budget 128GiB; done
for batch in 8 16; do ask mistral_7b_opset23.onnx "${card[@]}" --dim batch=$batch --train '^m\.model\.layers\.(28|29|30|31)\.|lm_head'; done
ask mistral_7b_opset23.onnx "${card[@]}" --dim batch=1 --host-budget 64GiB
for batch in 1 8 32; do ask mistral_7b_opset23.onnx "${card[@]}" --dim batch=$batch --host-budget 128GiB --moments 8bit; done
for device in rtx4090 h200; do ask mistral_7b_opset23.onnx --device $device --precision bf16 --dim batch=8 --moments 8bit --master-weights off; done
ask mistral_7b_opset23.onnx "${card[@]}" --dim batch=1 --max-batch --host-budget 128GiB

lora=(--precision bf16 --lora-rank 8 --lora-alpha 16)
ask mistral_7b_opset23.onnx --device h200 --budget 24GiB "${lora[@]}" --dim batch=16
ask mistral_7b_opset23.onnx --device rtx4090 "${lora[@]}" --dim batch=6
ask mistral_7b_opset23.onnx --device rtx4090 "${lora[@]}" --dim batch=6 --quantize nf4
ask mistral_7b_opset23.onnx --device h200 --budget 12GiB "${lora[@]}" --dim batch=6 --quantize nf4

lora=(--budget 18GiB --precision bf16 --lora-rank 4 --lora-alpha 4 --lora-targets to_q --lora-targets to_k --lora-targets to_v --lora-targets to_out.0)
for device in h200 rtx4090; do
  for batch in 1 16 64; do ask sd15_unet_opset20.onnx --device $device "${lora[@]}" --dim batch=$batch; done
  ask sd15_unet_opset20.onnx --device $device "${lora[@]}" --max-batch --recompute off --offload off
  ask sd15_unet_opset20.onnx --device $device "${lora[@]}" --max-batch
done
