#!/usr/bin/env bash
# Checks and times JPEGs that the GPU in this machine decodes, in about two minutes.
#
# Usage: jpeg_gpu.sh BUILD [IMAGES]
#
# BUILD is a build folder with CUDA; of it bin/plimsoll, bin/plimsoll_cuda_tests, tests/load_images and lib/libplimsoll_cuda.so are run. IMAGES photographs of
# 500 x 375 are made, 640 by default, which needs Python with numpy and Pillow. Printed are: the cases of plimsoll_cuda_tests; how far the pixels are from
# libjpeg-turbo's; images/s of 4 and 16 threads and of nvJPEG; and a small network, trained with both, with its losses, its step and what was promised and held.
# PLIMSOLL_CUDA_PATH names the folder of libnvjpeg.so.13 where it is not found by itself.
set -uo pipefail
build=$1 images=${2:-640}
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
check() { "$@" || { echo "FAILED: $*"; failed=1; }; }

python3 - "$here" "$folder" "$images" <<'PYTHON' || exit 1
import pathlib, sys
here, folder, count = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
sys.path[:0] = [here + "/tests/bench", here + "/tests/cli"]
import onnx_writer as onnx
from made_images import make_images
(folder / "images").mkdir()
make_images(folder / "images", count)
rows, side, channels, layers, weights = 64, 224, 3, [], []
for i, (made, kernel) in enumerate(((64, 7), (128, 3), (256, 3), (256, 3))):
    weights.append(onnx.tensor(f"w{i}", [made, channels, kernel, kernel], raw=bytes(4 * made * channels * kernel * kernel)))
    pad = [kernel // 2] * 4
    layers += [onnx.node("Conv", f"{f'a{i - 1}' if i else 'x'} w{i}", f"c{i}", f"/conv{i}", kernel_shape=[kernel] * 2, strides=[2, 2], pads=pad),
               onnx.node("Relu", f"c{i}", f"a{i}", f"/relu{i}")]
    channels = made
weights.append(onnx.tensor("head", [channels, 10], raw=bytes(40 * channels)))
layers += [onnx.node("GlobalAveragePool", "a3", "p", "/pool"), onnx.node("Flatten", "p", "f", "/flat"), onnx.node("MatMul", "f head", "logits", "/head"),
           onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss", "/loss")]
inputs = [onnx.value("x", onnx.FLOAT, rows, 3, side, side), onnx.value("labels", onnx.INT64, rows)]
(folder / "net.onnx").write_bytes(onnx.model(layers, inputs, [onnx.value("loss", onnx.FLOAT)], weights))
(folder / "full.toml").write_text('[transforms]\ncrop = "random-resized"\nflip = 0.5\nmean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\ndecode = "full"\n')
PYTHON

echo "== cases"
check "$build/bin/plimsoll_cuda_tests" --test-case='jpeg decoder*' --success=false
load=$build/tests/load_images
echo "== pixels"
check "$load" "$folder/images" compare 8
echo "== speed"
for how in 4 16 gpu; do
  echo "$how: $(check "$load" "$folder/images" "$how" 10 2>&1 | tail -1)"  # so that files are cached and clocks are up
  for _ in 1 2 3; do echo "$how: $(check "$load" "$folder/images" "$how" 60 2>&1 | tail -1)"; done
done

echo "== training"
check "$build/bin/plimsoll" compile "$folder/net.onnx" -o "$folder/net.plan" --device auto --precision bf16 --for-gpu-decoding >/dev/null 2>"$folder/log" || cat "$folder/log"
for how in cpu gpu; do
  check "$build/bin/plimsoll" run "$folder/net.plan" --init 1 --data "$folder/images" --transforms "$folder/full.toml" --decode $how --steps 300 --lr 1e-3 \
    --metrics "$folder/$how.jsonl" >"$folder/out" 2>"$folder/log" || tail -2 "$folder/log"
  sed "s/^/$how: /" "$folder/out"
  grep -h 'JPEGs are' "$folder/log" | sed "s/^/$how: /"
done
python3 - "$folder" <<'PYTHON' || failed=1
import json, statistics, sys
losses = {how: [json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{how}.jsonl")] for how in ("cpu", "gpu")}
for first, end in ((0, 1), (0, 20), (140, 160), (280, 300)):
    means = [statistics.fmean(losses[how][first:end]) for how in ("cpu", "gpu")]
    print(f"steps {first + 1} to {end}: loss {means[0]:.5f} by the processor's pixels, {means[1]:.5f} by the GPU's")
apart = abs(losses["cpu"][0] - losses["gpu"][0]) / losses["cpu"][0]
print(f"the first losses differ by {apart:.1e} of themselves")
sys.exit(apart > 1e-2)
PYTHON
[ $failed -eq 0 ] && echo "all passed" || echo "something FAILED"
exit $failed
