#!/usr/bin/env python3
"""Step time and peak resident memory of Plimsoll and of PyTorch eager, on the CPU, in one run.

Usage: compare_pytorch.py PLIMSOLL [--rounds 3] [--steps 6] [--threads 2] [--side both|pytorch|plimsoll]

GPT-2 124M with its usual dropout, batch 1, sequence 256, float32, AdamW. Rounds of the two sides alternate, each in a
process of its own; medians are over the steps of all rounds after each round's warm-up, and memory is the peak that
the kernel reports for the process. Needs torch, onnxscript, transformers and safetensors.
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

ROWS = 256
WARM_UP = 2
SETTINGS = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}


def build_model():
    import torch
    import transformers

    class CausalLM(torch.nn.Module):
        """The labels are next tokens already, so nothing is shifted."""

        def __init__(self):
            super().__init__()
            self.gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="sdpa"))

        def forward(self, input_ids, labels):
            logits = self.gpt2(input_ids=input_ids, use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    torch.manual_seed(0)
    model = CausalLM().train()
    tokens = torch.randint(0, model.gpt2.config.vocab_size, (1, ROWS + 1))
    return model, {"input_ids": tokens[:, :-1].clone(), "labels": tokens[:, 1:].clone()}


def export(folder):
    import safetensors.torch
    import torch

    model, batch = build_model()
    torch.onnx.export(model, tuple(batch.values()), folder / "model.onnx", dynamo=True, optimize=False, opset_version=20,
                      input_names=list(batch), output_names=["loss"], verbose=False)
    safetensors.torch.save_file(batch, folder / "batch.safetensors")


def train_with_pytorch(steps, threads):
    import torch

    torch.set_num_threads(threads)
    model, batch = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                                  eps=SETTINGS["eps"], weight_decay=SETTINGS["weight_decay"])
    for step in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        loss = loss.item()
        print(json.dumps({"step": step, "loss": loss, "step_ms": 1e3 * (time.perf_counter() - start)}), flush=True)


def run(command, threads, metrics):
    """Runs a command that writes metrics; returns their rows and its peak resident MiB."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    with open(metrics, "w") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[1]} exits {process.returncode}")
    return usage.ru_maxrss / 1024


def rows_of(metrics):
    rows = [json.loads(line) for line in pathlib.Path(metrics).read_text().splitlines()]
    return [row for row in rows if "step_ms" in row]


class Side:
    """The measurements of one side over all its rounds."""

    def __init__(self, name, command, metrics):
        self.name, self.command, self.metrics = name, command, metrics
        self.step_ms, self.peak_mib, self.first_loss = [], [], None

    def measure(self, threads, printed):
        self.peak_mib.append(run(self.command, threads, printed))
        rows = rows_of(self.metrics)
        self.step_ms += [row["step_ms"] for row in rows[WARM_UP:]]
        self.first_loss = rows[0]["loss"]

    def report(self):
        print(f"{self.name:10} {statistics.median(self.step_ms):8.0f} ms per step (of {len(self.step_ms)}, from "
              f"{min(self.step_ms):.0f} to {max(self.step_ms):.0f})  {max(self.peak_mib):8.0f} MiB peak resident  "
              f"first loss {self.first_loss:.4f}")


def compare(args, folder):
    me = [sys.executable, os.path.abspath(__file__)]
    model, plan, batch = folder / "model.onnx", folder / "model.plan", folder / "batch.safetensors"
    sides = []
    if args.side != "plimsoll":
        command = [*me, args.program, "--part", "train", "--steps", args.steps, "--threads", args.threads]
        sides.append(Side("pytorch", command, folder / "pytorch.jsonl"))
    if args.side != "pytorch":
        subprocess.run([*me, args.program, "--part", "export", "--folder", folder], check=True, stdout=subprocess.DEVNULL)
        options = [part for key, value in SETTINGS.items() for part in ("--" + key.replace("_", "-"), str(value))]
        subprocess.run([args.program, "compile", model, "-o", plan, "--device", "cpu", "--optimizer", "adamw", *options],
                       check=True, stdout=subprocess.DEVNULL)
        command = [args.program, "run", plan, "--weights", model, "--data", batch, "--steps", args.steps,
                   "--metrics", folder / "plimsoll.jsonl"]
        sides.append(Side("plimsoll", command, folder / "plimsoll.jsonl"))
    for _ in range(args.rounds):
        for side in sides:
            printed = side.metrics if side.name == "pytorch" else folder / "printed.txt"
            side.measure(args.threads, printed)
    for side in sides:
        side.report()
    if len(sides) == 2:
        time_ratio = statistics.median(sides[1].step_ms) / statistics.median(sides[0].step_ms)
        print(f"ratio      {time_ratio:8.2f} in time, {max(sides[1].peak_mib) / max(sides[0].peak_mib):.2f} in memory")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help=f"a round, the first {WARM_UP} of them not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["both", "pytorch", "plimsoll"], default="both")
    parser.add_argument("--part", choices=["compare", "export", "train"], default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "export":
        export(args.folder)
    elif args.part == "train":
        train_with_pytorch(args.steps, args.threads)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(args, pathlib.Path(folder))


if __name__ == "__main__":
    main()
