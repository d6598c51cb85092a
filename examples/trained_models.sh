#!/usr/bin/env bash
# From a fresh machine to three trained models beside PyTorch's: digits images, a BERT with masks, a GPT on text. Installs what is
# missing, builds, makes a Python environment with PyTorch in build/trained_models, and trains each task on both sides by one recipe
# with three seeds. docs/trained_models.md explains the recipes and has the results.
#
# Usage: [PLIMSOLL=PROGRAM] [PYTHON=PYTHON] examples/trained_models.sh [digits] [bert] [gpt] [OPTIONS of tests/bench/same_accuracy.py]
#        With PROGRAM nothing is installed or built, with PYTHON no environment is made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. cmake/install_dependencies.sh

folder=build/trained_models
plimsoll=${PLIMSOLL:-build/release/bin/plimsoll}
python=${PYTHON:-$folder/venv/bin/python}
packages=(torch transformers scikit-learn pillow safetensors onnx onnxscript)

if [ -z "${PLIMSOLL:-}" ]; then
  install_dependencies "${build_packages[@]}" python3 python3-venv
  cmake --preset release
  cmake --build --preset release --target plimsoll
fi
if [ -z "${PYTHON:-}" ] && [ ! -x "$python" ]; then
  python3 -m venv "$folder/venv"
  "$python" -m pip install --quiet "${packages[@]}"
fi
mkdir -p "$folder"
exec "$python" -B tests/bench/same_accuracy.py "$plimsoll" "$@" --folder "$folder/files" --markdown "$folder/results.md"
