#!/usr/bin/env python3
"""Compile time, peak resident memory, packing waste and op counts of models, one line each. Standard library only.

Usage: compile_models.py PLIMSOLL MODEL.onnx... [--dim NAME=N] [--device cpu]

Models without a loss get cross-entropy on their first output. Packing waste is arena bytes over the peak of live bytes.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time


def run_measured(command):
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    return status, time.monotonic() - started, usage.ru_maxrss / 1024, output + errors


def compile_model(args, model, plan):
    options = ["--device", args.device]
    command = [args.program, "compile", str(model), "-o", plan, *options]
    result = run_measured(command)
    if result[0] and "--dim" in result[3]:
        command += [word for dim in args.dim for word in ("--dim", dim)]
        result = run_measured(command)
    if result[0] and "no loss" in result[3]:
        logits = re.search(r"\(([^ ]+) f", result[3]).group(1)
        result = run_measured(command + ["--loss", f"cross-entropy:{logits}:labels"])
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print("| model | seconds | MiB resident | instructions | promised GiB | packing waste | largest forward block |")
    print("|---|---|---|---|---|---|---|")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        plan = str(pathlib.Path(folder) / "model.plan")
        for model in args.models:
            status, seconds, resident, text = compile_model(args, model, plan)
            name = pathlib.Path(model).stem if pathlib.Path(model).stem != "model" else pathlib.Path(model).parent.name
            if status:
                failed += 1
                print(f"| {name} | failed: {text.strip().splitlines()[-1][:120]} |")
                continue
            report = json.loads(subprocess.run([args.program, "inspect", plan, "--json"], capture_output=True, text=True, check=True).stdout)
            device = report["memory"]["device"]
            blocks = collections.Counter()
            for instruction in report["instructions"]:
                found = re.search(r"(?:^|\.)(?:h|layers|layer|blocks)\.(\d+)(?:\.|$)", json.dumps(instruction.get("origin", {}).get("module", "")).strip('"'))
                if found and instruction.get("phase") == "forward":
                    blocks[found.group(1)] += 1
            largest = max(blocks.values()) if blocks else "-"
            print(f"| {name} | {seconds:.2f} | {resident:.0f} | {len(report['instructions'])} | {device['promised_bytes'] / 2**30:.2f} "
                  f"| {100 * device['packing_waste']:.3f} % | {largest} |", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
