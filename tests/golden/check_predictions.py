#!/usr/bin/env python3
"""Compare the predicted time of golden cases' steps on the CPU with the measured one, op by op as `run --profile` does.

Usage: check_predictions.py PLIMSOLL [CASE ...] [--threads 1]

By default one thread computes: it needs no other to be on time, and each instruction counts with the least of its runs,
so that other work on the machine hardly shows. A second one saves these small cases little, as the description `cpu`,
of two cores, has it. Fails where a step takes more than LIMIT times its prediction or less than one LIMITth. Needs
Python's standard library alone.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import check_golden

CASES = ["bert_classifier", "gpt2", "resnet", "unet", "vit"]
LIMIT = 3  # processors differ, and one description serves all; docs/benchmarks.md has the times on one of them
STEPS = "30"
UNITS = {"us": 1, "ms": 1e3, "s": 1e6}


def profiled(plimsoll, case, folder, threads):
    """The microseconds of one step, measured and predicted."""
    data = check_golden.unpack(case, folder)
    plan = folder / f"{case}.plan"
    for words in (["compile", data / "model.onnx", "-o", plan, "--device", "cpu"],
                  ["run", plan, "--weights", data / "model.onnx", "--data", data / "batch.safetensors", "--steps", STEPS,
                   "--threads", threads, "--profile", folder / f"{case}.times"]):
        done = subprocess.run([plimsoll, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
    total = re.search(r"^total +\d+ +([\d.]+) (\w+) +([\d.]+) (\w+)", done.stdout, re.MULTILINE)
    return float(total[1]) * UNITS[total[2]], float(total[3]) * UNITS[total[4]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--threads", default="1")
    arguments = parser.parse_intermixed_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in arguments.cases or CASES:
            measured, predicted = profiled(arguments.plimsoll, case, pathlib.Path(folder), arguments.threads)
            holds = 1 / LIMIT <= measured / predicted <= LIMIT
            failed += not holds
            print(f"{'ok  ' if holds else 'FAIL'}  {case}: {measured:.0f} us, predicted {predicted:.0f}, {measured / predicted:.2f} times")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
