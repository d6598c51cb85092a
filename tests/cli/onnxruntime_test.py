#!/usr/bin/env python3
"""Compare imported models with ONNX Runtime by `verify --against`. Exits with 77 where python3 has no onnxruntime.

Usage: onnxruntime_test.py PLIMSOLL [TEST ...]
"""
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_test
from cli_test import LABELS, MACHINE, MODEL, MODELS, X, expect, refuse, succeed, write_safetensors


def verify(folder, model, against, *options):
    plan = folder / "model.plan"
    succeed("compile", model, "-o", plan, "--device", "cpu")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    return ["verify", plan, "--weights", model, "--data", data, "--against", against, *options]


def test_values_agree(folder):
    said = succeed(*verify(folder, MODELS / "linear.onnx", MODELS / "linear.onnx"))
    expect("2 forward values" in said and "beside ONNX Runtime 1." in said, said)


# Takes the place of the package and adds 1 to what the real one gives for `logits`.
PLANTED = """
import importlib, sys
sys.path.remove({folder!r})
del sys.modules["onnxruntime"]
real = importlib.import_module("onnxruntime")
class Session(real.InferenceSession):
    def run(self, names, inputs):
        outputs = [each.name for each in self.get_outputs()]
        return [array + 1 if name == "logits" else array for name, array in zip(outputs, super().run(names, inputs))]
real.InferenceSession = Session
"""


def test_value_that_differs_is_named(folder):
    arguments = verify(folder, MODELS / "linear.onnx", MODELS / "linear.onnx")
    (folder / "onnxruntime.py").write_text(PLANTED.format(folder=str(folder)))
    os.environ["PYTHONPATH"] = str(folder)
    refuse(MODEL, ["%logits is the first to differ"], *arguments)
    del os.environ["PYTHONPATH"]


def test_missing_runtime_is_said(folder):
    arguments = verify(folder, MODELS / "linear.onnx", MODELS / "linear.onnx")
    done = subprocess.run([cli_test.PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, env={"PATH": str(folder)})
    expect(done.returncode == MACHINE and "pip install onnxruntime" in done.stderr, done.stderr)


def main():
    cli_test.PROGRAM, *wanted = sys.argv[1:]
    python = shutil.which("python3")
    if not python or subprocess.run([python, "-c", "import onnxruntime"], capture_output=True).returncode != 0:
        print("python3 has no onnxruntime")
        sys.exit(77)
    cli_test.run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
