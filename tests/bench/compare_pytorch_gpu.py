#!/usr/bin/env python3
"""Training steps on one GPU: Plimsoll, PyTorch eager and torch.compile on the same model, batch and precision.

Usage: compare_pytorch_gpu.py PLIMSOLL [CASE ...] [--rounds 2] [--steps 30] [--sides plimsoll,eager,compile,best]
                              [--device h200] [--budget BYTES] [--json FILE]

A step is forward, backward and AdamW in bf16 with fp32 weights, on one random batch; dropout is off on every side, but in the
cases gpt2_dropout_b16 and bert_dropout_b64.
Rounds of the sides alternate, each in a process of its own; medians are over the steps of all rounds after each
round's warm-up. Exports the models itself. Needs torch, torchvision, transformers, onnxscript and safetensors.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_training import CASES, WARM_UP, compile_options, export_apart, train

USUAL = ["gpt2_b16", "gpt2_b64", "bert_base_b64", "vit_l16_b64", "resnet50_b256"]
MODES = {"eager": None, "compile": "default", "best": "max-autotune"}


class Plimsoll:
    """One side: compile once, run each round."""

    def __init__(self, args, folder):
        self.args, self.folder, self.plan = args, folder, folder / "model.plan"
        options = compile_options() + (["--budget", args.budget] if args.budget else [])
        start = time.perf_counter()
        subprocess.run([args.program, "compile", folder / "model.onnx", "-o", self.plan, "--device", args.device, *options], check=True, stdout=subprocess.DEVNULL)
        self.compile_ms = 1e3 * (time.perf_counter() - start)
        self.report = json.loads(subprocess.check_output([args.program, "inspect", self.plan, "--json"]))

    def measure(self):
        metrics = self.folder / "metrics.jsonl"
        subprocess.run([self.args.program, "run", self.plan, "--init", "1", "--init-std", "0.02", "--data", self.folder / "batch.safetensors",
                        "--steps", str(WARM_UP + self.args.steps), "--metrics", metrics], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        memory = self.report["memory"]["device"]
        return {"step_ms": [row["step_ms"] for row in rows[WARM_UP:]], "loss": rows[-1]["loss"], "compile_ms": self.compile_ms,
                "promised": memory["promised_bytes"], "allocated": memory["arena_bytes"], "process": rows[-1]["device_bytes"],
                "roofline_ms": self.report["time"]["roofline_us"] / 1e3}


def measure_pytorch(args, case, side):
    command = [sys.executable, os.path.abspath(__file__), args.program, case, "--part", side, "--steps", str(args.steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def gib(value):
    return f"{value / 2**30:7.2f}" if value else "      -"


def compare(args, case):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        sides = args.sides.split(",")
        rounds = {side: [] for side in sides}
        if "plimsoll" in sides:
            export_apart(case, folder)
            ours = Plimsoll(args, folder)
        for _ in range(args.rounds):
            for side in sides:
                rounds[side].append(ours.measure() if side == "plimsoll" else measure_pytorch(args, case, side))
    summary = {}
    for side, runs in rounds.items():
        times = sorted(ms for run in runs for ms in run["step_ms"])
        summary[side] = {"step_ms": statistics.median(times), "p10": times[len(times) // 10], "p90": times[len(times) * 9 // 10],
                         **{key: runs[-1].get(key) for key in ("loss", "compile_ms", "promised", "allocated", "reserved", "process", "roofline_ms")}}
        s = summary[side]
        roofline = f"  roofline {100 * s['roofline_ms'] / s['step_ms']:.0f} %" if s["roofline_ms"] else ""
        print(f"{case:14} {side:9} {s['step_ms']:8.2f} ms ({s['p10']:.2f} to {s['p90']:.2f})  GiB promised {gib(s['promised'])} "
              f"allocated {gib(s['allocated'])} reserved {gib(s['reserved'])} process {gib(s['process'])}  "
              f"compile {s['compile_ms'] / 1e3:6.1f} s  loss {s['loss']:.4f}{roofline}", flush=True)
    return summary


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sides", default="plimsoll,eager,compile")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--budget")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--part", choices=["compare", "export", "eager", "compile", "best"], default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [case for case in args.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")
    if args.part == "export":
        export_apart(args.cases[0], args.folder)
    elif args.part != "compare":
        print(json.dumps(train(args.cases[0], args.steps, MODES[args.part])))
    else:
        results = {case: compare(args, case) for case in args.cases or USUAL}
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
