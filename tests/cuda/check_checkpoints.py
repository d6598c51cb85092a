#!/usr/bin/env python3
"""Trains GPT-2 on the card with checkpoints, kills the run with SIGKILL, resumes it, and holds the result to the bits of a run that was never stopped; then says what
a checkpoint costs a step.

Usage: check_checkpoints.py PLIMSOLL MODEL [--device auto] [--dim batch=16] [--steps 30] [--kill-after 17] [--cost-steps 200] [--every 100]

MODEL is an export of a language model, `.onnx` or `.onnx.xz`, whose weights need not be there: GPT-2 124M in the figures of docs/benchmarks.md. Its tokens are drawn
at random. The snapshot is pinned and within a host budget that `compile --for-checkpoints` plans for. Needs Python's standard library alone.
"""
import argparse
import json
import lzma
import math
import pathlib
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

WARM_UP = 10
EVERY = 5  # of the run that is killed
MOST_COST = 0.02


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dim", action="append")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--kill-after", type=int, default=17)
    parser.add_argument("--cost-steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=100, help="steps between the checkpoints whose cost is measured")
    return parser.parse_args()


class Job:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.plan, self.tokens, model = folder / "job.plan", folder / "tokens.bin", args.model
        if model.suffix == ".xz":
            model = folder / model.stem
            model.write_bytes(lzma.decompress(args.model.read_bytes()))
        random.seed(1)
        self.tokens.write_bytes(struct.pack("<400000H", *(random.randrange(60) for _ in range(400000))))
        dims = [word for dim in args.dim or ["batch=16"] for word in ("--dim", dim)]
        # The least host budget is what the refusal of a smaller one says.
        refused = self.compile(model, *dims, "--for-checkpoints", "--host-budget", "1MiB", fails=True)
        number, unit = re.search(r"and ([\d.]+) ?(\wiB) of host memory", refused).groups()
        budget = f"{math.ceil(float(number)) + 1}{unit}"
        self.compile(model, *dims, "--for-checkpoints", "--host-budget", budget)
        print(f"a plan whose host budget is {budget}, of which checkpoints take most")

    def compile(self, model, *more, fails=False):
        words = [self.args.program, "compile", model, "-o", self.plan, "--device", self.args.device, "--precision", "bf16", *more]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        if (done.returncode != 0) != fails:
            sys.exit(f"compile exits {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stderr

    def words(self, name, steps, *more):
        return list(map(str, [self.args.program, "run", self.plan, "--init", 1, "--init-std", 0.02, "--data", self.tokens, "--seed", 3, "--steps", steps,
                              "--lr-schedule", "cosine", "--lr-steps", self.args.steps, "--warmup", 5, "--metrics", self.folder / f"{name}.jsonl", *more]))

    def run(self, name, steps, *more):
        done = subprocess.run(self.words(name, steps, *more), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: exits {done.returncode}: {done.stderr.strip()[-500:]}")
        for line in done.stdout.splitlines():
            if "promised" in line:
                print(f"{name}: {line}")
        return self.rows(name)

    def rows(self, name):
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def kill_one(self, name, steps, after, *more):
        """Kills the run once it has made so many steps."""
        run = subprocess.Popen(self.words(name, steps, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and len(self.rows(name)) < after:
            time.sleep(0.002)
        if run.poll() is not None:
            sys.exit("the run ended before it could be killed")
        run.send_signal(signal.SIGKILL)
        run.wait()
        return len(self.rows(name))


def check_bits(job):
    args, whole, resumed, kept = job.args, job.folder / "whole.safetensors", job.folder / "resumed.safetensors", job.folder / "kept"
    job.run("whole", args.steps, "--save", whole)
    job.run("checkpoints", args.steps, "--save", resumed, "--checkpoint", job.folder / "others", "--every", EVERY, "--keep", 1)
    same = whole.read_bytes() == resumed.read_bytes()
    print(f"with a checkpoint every {EVERY} steps: {'the same bits' if same else 'OTHER BITS'}")
    killed = job.kill_one("killed", args.steps, args.kill_after, "--checkpoint", kept, "--every", EVERY, "--keep", 2)
    left = sorted(each.name for each in kept.iterdir() if each.name.startswith("step-"))
    rows = job.run("killed", args.steps, "--checkpoint", kept, "--every", EVERY, "--keep", 2, "--resume", "auto", "--save", resumed)
    again = whole.read_bytes() == resumed.read_bytes()
    print(f"killed after step {killed}, which left {', '.join(left) or 'no checkpoint'}; resumed to step {rows[-1]['step']}: {'the same bits' if again else 'OTHER BITS'}")
    return same and again


def check_cost(job):
    """Steps with checkpoints against steps without, in turn, and the median of three rounds."""
    args, shares = job.args, []
    for turn in range(3):
        ms = {}
        for name, more in ((f"without {turn}", ()), (f"with {turn}", ("--checkpoint", job.folder / f"cost{turn}", "--every", args.every, "--keep", 1))):
            ms[name] = [row["step_ms"] for row in job.run(name, args.cost_steps + WARM_UP, *more)][WARM_UP:]
        without, with_them = (statistics.fmean(each) for each in ms.values())
        checkpoints = args.cost_steps // args.every
        shares.append(with_them / without - 1)
        print(f"{without:.3f} ms a step without, {with_them:.3f} with a checkpoint every {args.every} steps: {100 * shares[-1]:.2f} % more, "
              f"{(with_them - without) * args.cost_steps / checkpoints:.1f} ms a checkpoint")
    share = statistics.median(shares)
    print(f"a checkpoint every {args.every} steps costs {100 * share:.2f} % of a step, {100 * MOST_COST:.0f} % at most are due")
    return share <= MOST_COST


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        job = Job(args, pathlib.Path(name))
        results = [check_bits(job), check_cost(job)]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
