#!/usr/bin/env python3
"""The promise, on a card: GPT-2 124M at a batch that fits each budget only when much is repeated and some waits on the host, and what the
process then holds.

Usage: check_budgets.py PLIMSOLL [--device auto] [--budgets 8,12,16,24,48] [--batch-per-gib 8] [--model MODEL.onnx]

Fails where the process holds more than was promised, or where more than 2 % of the promise was not needed. Plans are made side by side,
and run one after the other. Exports the model itself (tests/bench/compare_pytorch_gpu.py) unless one with a batch that --batch can
change is given.
"""
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "compare_pytorch_gpu.py"
NEEDS_MORE = 4  # exit code of a plan that does not fit


def compile_plan(args, model, plan, budget):
    """The batch of a plan that fits: the one asked for, or as much less as it takes. 0 where not even one sample fits."""
    batch = args.batch_per_gib * budget
    while batch > 0:
        command = [args.program, "compile", model, "-o", plan, "--device", args.device, "--budget", f"{budget}GiB", "--batch", str(batch),
                   "--precision", "bf16", "--optimizer", "adamw"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return batch
        if done.returncode != NEEDS_MORE:
            raise RuntimeError(done.stderr)
        batch = batch * 7 // 8
    return 0


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
    parser.add_argument("--batch-per-gib", type=int, default=8)
    parser.add_argument("--model", type=pathlib.Path)
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if not args.model:
            subprocess.run([sys.executable, BENCH, args.program, "gpt2_b16", "--part", "export", "--folder", folder], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            args.model = folder / "model.onnx"
        budgets = [int(budget) for budget in args.budgets.split(",")]
        plans = [folder / f"{budget}.plan" for budget in budgets]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            batches = list(pool.map(lambda budget, plan: compile_plan(args, args.model, plan, budget), budgets, plans))
        for budget, plan, batch in zip(budgets, plans, batches):
            if batch == 0:
                print(f"{budget:3} GiB: not even one sample fits")
                failed += 1
                continue
            make_batch(folder / "batch.safetensors", batch)
            done = subprocess.run([args.program, "run", plan, "--init", "1", "--init-std", "0.02", "--data", folder / "batch.safetensors", "--steps", "5"],
                                  capture_output=True, text=True)
            found = re.search(r"promised ([\d.,]+ \w+), held ([\d.,]+ \w+).*", done.stdout)
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
