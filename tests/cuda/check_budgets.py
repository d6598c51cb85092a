#!/usr/bin/env python3
"""The promise, on a card: GPT-2 124M at about the largest batch that fits each budget, and what the process then holds.

Usage: check_budgets.py PLIMSOLL [--device auto] [--budgets 8,12,16,24,48] [--model MODEL.onnx]

Fails where the process holds more than was promised, or where more than 2 % of the promise was not needed. Exports the
model itself (tests/bench/compare_pytorch_gpu.py) unless one with a batch that --batch can change is given.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "compare_pytorch_gpu.py"
NEEDS_MORE = 4  # exit code of a plan that does not fit


def compile_plan(args, model, plan, budget, batch):
    command = [args.program, "compile", model, "-o", plan, "--device", args.device, "--budget", f"{budget}GiB", "--batch", str(batch),
               "--precision", "bf16", "--optimizer", "adamw"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, NEEDS_MORE):
        sys.exit(done.stderr)
    return done.returncode == 0


def largest_batch(args, model, plan, budget):
    low, high = 0, 1
    while compile_plan(args, model, plan, budget, high):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):  # near enough: the promise is what is tested
        middle = (low + high) // 2
        if compile_plan(args, model, plan, budget, middle):
            low = middle
        else:
            high = middle
    return low if low and compile_plan(args, model, plan, budget, low) else 0


def make_batch(path, batch):
    import safetensors.torch
    import torch
    safetensors.torch.save_file({"x": torch.randint(0, 50257, (batch, 1024)), "labels": torch.randint(0, 50257, (batch, 1024))}, path)


def to_bytes(text):
    number, unit = text.split()
    return float(number.replace(",", "")) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budgets", default="8,12,16,24,48")
    parser.add_argument("--model", type=pathlib.Path)
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if not args.model:
            subprocess.run([sys.executable, BENCH, args.program, "gpt2_b16", "--part", "export", "--folder", folder], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            args.model = folder / "model.onnx"
        for budget in map(int, args.budgets.split(",")):
            plan = folder / "model.plan"
            batch = largest_batch(args, args.model, plan, budget)
            if batch == 0:
                print(f"{budget:3} GiB: not even one sample fits")
                failed += 1
                continue
            make_batch(folder / "batch.safetensors", batch)
            done = subprocess.run([args.program, "run", plan, "--init", "1", "--data", folder / "batch.safetensors", "--steps", "5"],
                                  capture_output=True, text=True)
            found = re.search(r"promised ([\d.,]+ \w+), held ([\d.,]+ \w+)", done.stdout)
            if done.returncode or not found:
                print(f"{budget:3} GiB, batch {batch}: exits {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
                failed += 1
                continue
            promised, held = map(to_bytes, found.groups())
            kept = held <= promised <= budget * 2**30 and promised - held <= 0.02 * held
            failed += not kept
            print(f"{budget:3} GiB, batch {batch:4}: {found.group(0)}, {100 * (promised / held - 1):.2f} % above use  {'ok' if kept else 'FAIL'}", flush=True)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
