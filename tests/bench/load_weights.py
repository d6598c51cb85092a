#!/usr/bin/env python3
"""How fast weights of an f32 file become a plan's states, and what that takes beside the plan.

Usage: load_weights.py PLIMSOLL DIR [--layers 8] [--hidden 2048] [--gated 5632] [--times 3]

Writes a transformer and its weights (1.7 GB in the usual sizes) to DIR, and plans of adapters on the CPU with its base in f32, bf16 and each form of --quantize. For each it prints the
seconds of `run --steps 0` as a whole, the bytes of the file by these, and the most bytes that the process held above the plan's states, the program itself among them (about 60 MB). The file is out of the page cache before each
reading (posix_fadvise); `plain` reads it in pieces of 8 MiB and does nothing with it.
Needs Python's standard library alone.
"""
import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import time

import write_llama

FORMS = {"f32": [], "bf16": ["--precision", "bf16"], **{form: ["--precision", "bf16", "--quantize", form] for form in ("nf4", "nf4-single", "int4", "int8", "fp8")}}
SETTINGS = {"heads": 16, "kv_heads": 16, "vocabulary": 2000, "sequence": 16, "batch": 1}
PIECE = 8 << 20


def forget(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(path):
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.read(PIECE):
            pass
    return time.perf_counter() - begin


def run(words):
    """Seconds, and the most bytes that the process held."""
    begin = time.perf_counter()
    child = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(text)
    return time.perf_counter() - begin, usage.ru_maxrss * 1024


def state_bytes_of(program, plan):
    return json.loads(subprocess.check_output([program, "inspect", plan, "--json"]))["memory"]["device"]["persistent_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--gated", type=int, default=5632)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    model, weights, tokens = (args.folder / name for name in ("model.onnx", "weights.safetensors", "tokens.bin"))
    model.write_bytes(write_llama.Writer(argparse.Namespace(layers=args.layers, hidden=args.hidden, gated=args.gated, **SETTINGS)).write())
    tokens.write_bytes(struct.pack("<64H", *range(64)))
    head = args.folder / "head.plan"  # trains nothing that is large, so that its weights are the model's
    run([args.program, "compile", model, "-o", head, "--device", "cpu", "--train", "norm"])
    run([args.program, "run", head, "--init", 1, "--init-std", 0.02, "--data", tokens, "--steps", 0, "--save", weights])
    size = weights.stat().st_size
    print(f"{size / 1e9:.2f} GB, medians of {args.times}\nbase         s   GB/s   MB above the states")
    times = []
    for _ in range(args.times):
        forget(weights)
        times.append(read_plainly(weights))
    print(f"{'plain':10} {statistics.median(times):5.1f} {size / 1e9 / statistics.median(times):6.2f}")
    for form, options in FORMS.items():
        plan = args.folder / f"{form}.plan"
        run([args.program, "compile", model, "-o", plan, "--device", "cpu", "--lora-rank", 8, *options])
        states = state_bytes_of(args.program, plan)
        times, most = [], 0
        for _ in range(args.times):
            forget(weights)
            seconds, held = run([args.program, "run", plan, "--weights", weights, "--data", tokens, "--steps", 0])
            times.append(seconds)
            most = max(most, held)
        print(f"{form:10} {statistics.median(times):5.1f} {size / 1e9 / statistics.median(times):6.2f}   {(most - states) / 1e6:6.0f}", flush=True)


if __name__ == "__main__":
    main()
