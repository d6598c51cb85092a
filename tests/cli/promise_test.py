#!/usr/bin/env python3
"""Break the promise of a plan for a GPU: the run says so, exits 4, and has saved its weights all the same.

Usage: promise_test.py PLIMSOLL STAND_IN [TEST ...]

STAND_IN is the library of tests/cuda/stand_in, which takes the place of the CUDA backend and of NVIDIA's libraries, and
says that the process holds as many bytes as the test likes. Needs Python's standard library alone.
"""
import json
import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_test
from cli_test import BUDGET, DONE, LABELS, MODELS, X, expect, run, succeed, write_safetensors

# What the program opens before a backend (runtime/cuda/loader.cpp).
NVIDIA = ["libcuda.so.1", "libcublasLt.so.13", "libcudnn.so.9"]


def put_stand_in(folder, plimsoll, stand_in):
    """Makes the tests' program one that takes `stand_in` for the CUDA backend and NVIDIA's libraries."""
    program = folder / "plimsoll"
    shutil.copy(plimsoll, program)
    for name in ["libplimsoll_cuda.so", *NVIDIA]:
        (folder / name).symlink_to(stand_in)
    cli_test.PROGRAM = str(program)
    os.environ["LD_LIBRARY_PATH"] = os.environ["PLIMSOLL_CUDA_PATH"] = str(folder)


def train_on_stand_in(folder, held_share, *options):
    """Trains two steps while the driver counts `held_share` of what the plan promised."""
    put_stand_in(folder, PLIMSOLL, STAND_IN)
    plan, model = folder / "linear.plan", MODELS / "linear.onnx"
    succeed("compile", model, "-o", plan, "--device", "h200")
    promised = json.loads(succeed("inspect", plan, "--json"))["memory"]["device"]["promised_bytes"]
    os.environ["PLIMSOLL_STAND_IN_HELD_BYTES"] = str(int(held_share * promised))
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    return run("run", plan, "--weights", model, "--data", data, "--steps", "2", *options)


def test_kept_promise(folder):
    done = train_on_stand_in(folder, 1, "--save", folder / "after.safetensors")
    expect(done.returncode == DONE and "the stand-in" in done.stdout, done.stderr)


def test_only_batch_stays_on_the_card(folder):
    put_stand_in(folder, PLIMSOLL, STAND_IN)
    os.environ["PLIMSOLL_STAND_IN_HELD_BYTES"] = "0"
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    losses = {}
    for device in ("cpu", "h200"):
        plan, metrics = folder / f"{device}.plan", folder / f"{device}.jsonl"
        succeed("compile", MODELS / "linear.onnx", "-o", plan, "--device", device, "--precision", "fp32")
        succeed("run", plan, "--weights", MODELS / "linear.onnx", "--data", data, "--steps", "5", "--metrics", metrics)
        losses[device] = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    expect(losses["cpu"] == losses["h200"] and len(set(losses["cpu"])) == 5, f"losses differ: {losses}")


def test_broken_promise_saves_weights(folder):
    saved, checkpoints = folder / "after.safetensors", folder / "checkpoints"
    done = train_on_stand_in(folder, 1.5, "--save", saved, "--checkpoint", checkpoints)
    expect(done.returncode == BUDGET and "the promise is broken" in done.stderr, f"exits {done.returncode}: {done.stderr}")
    expect(saved.exists() and saved.stat().st_size > 0, "the weights are lost")
    expect(any(checkpoints.iterdir()), "the checkpoints are lost")
    succeed("inspect", folder / "linear.plan")
    os.environ["PLIMSOLL_STAND_IN_HELD_BYTES"] = "0"
    succeed("run", folder / "linear.plan", "--weights", saved, "--data", folder / "batch.safetensors", "--steps", "1")


def main():
    global PLIMSOLL, STAND_IN
    PLIMSOLL, STAND_IN, *wanted = sys.argv[1:]
    cli_test.run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
