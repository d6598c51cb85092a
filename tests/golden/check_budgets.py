#!/usr/bin/env python3
"""Checks the promises about budgets on the golden cases. Needs Python's standard library alone.

Usage: check_budgets.py PLIMSOLL [CASE ...] [--points 20] [--runs 3] [compile options ...]

Budgets of a case go from the least, as a refusal prints it, to the plain plan's need. Every plan is within its budget, none is refused, more
budget never takes longer, and the same budget gives the same bytes. The plans of the least and of some larger budgets
train three steps in poisoned memory, with the batch whole: gradients, losses and parameters equal the plain plan's, bit
for bit. Other options go to `compile`. Prints one line per case and `N passed, N failed`.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile

from check_golden import CASES, OPTIMIZER_OPTIONS, load_floats, unpack

STEPS = 3


class Case:
    def __init__(self, program, folder, rest):
        self.program, self.folder, self.plan = program, folder, folder / "budget.plan"
        expected = json.loads((folder / "expected.json").read_text())
        self.options = ["--device", "cpu", "--precision", "fp32", "--split", "off", *rest]
        for key, value in expected["optimizer"].items():
            self.options += [OPTIMIZER_OPTIONS[key], str(value)]
        if expected["exporter"] == "torchscript":
            _, shapes = load_floats(folder / "batch.safetensors")
            self.options += ["--dim", f"batch={next(iter(shapes.values()))[0]}"]

    def execute(self, *command, fails_with=None):
        done = subprocess.run([self.program, *map(str, command)], capture_output=True, text=True, timeout=300)
        if done.returncode not in (0, fails_with):
            raise RuntimeError(f"{command[0]} exits {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return done

    def compile(self, budget):
        """Bytes needed and microseconds per step; None if the budget is refused."""
        done = self.execute("compile", self.folder / "model.onnx", "-o", self.plan, *self.options, "--budget", budget, fails_with=4)
        if done.returncode:
            return None
        report = json.loads(self.execute("inspect", self.plan, "--json").stdout)
        return report["memory"]["device"]["promised_bytes"], report["time"]["predicted_step_us"]

    def least(self):
        error = self.execute("compile", self.folder / "model.onnx", "-o", self.plan, *self.options, "--budget", 1, fails_with=4).stderr
        return re.search(r": needs ([\d.]+ \w+) \((\d+) bytes", error).groups()

    def trained(self):
        """All files that three steps write, as bytes."""
        files = [self.folder / name for name in ("budget_grads.safetensors", "budget_after.safetensors", "budget.jsonl")]
        self.execute("run", self.plan, "--weights", self.folder / "model.onnx", "--data", self.folder / "batch.safetensors", "--steps", STEPS,
                     "--poison", "--dump-gradients", files[0], "--save", files[1], "--metrics", files[2])
        losses = [json.loads(line)["loss"] for line in files[2].read_text().splitlines()]
        return files[0].read_bytes(), files[1].read_bytes(), losses


def check(case, points, runs):
    top, plain_us = case.compile(2**50)
    plain = case.trained()
    typed, least = case.least()
    if not case.compile(typed):
        return f"the refusal asks for {typed}, which is refused"
    slowest = float("inf")
    budgets = [int(least) + (top - int(least)) * point // max(points - 1, 1) for point in range(points)]
    to_run = {budgets[run * (points - 1) // max(runs, 1)] for run in range(runs)}
    for budget in budgets:
        got = case.compile(budget)
        if not got:
            return f"{budget} bytes are refused, {least} are not"
        needs, step_us = got
        if needs > budget:
            return f"needs {needs} of {budget} bytes"
        if step_us > slowest * (1 + 1e-9):
            return f"{budget} bytes take {step_us} us, fewer take {slowest} us"
        slowest = step_us
        if budget not in to_run:
            continue
        first = case.plan.read_bytes()
        if case.trained() != plain:
            return f"within {budget} bytes training is another than without a budget"
        case.compile(budget)
        if case.plan.read_bytes() != first:
            return f"{budget} bytes give another plan the second time"
    return f"{slowest} us with the plain plan's bytes, {plain_us} us without a budget" if slowest > plain_us * (1 + 1e-9) else ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    args, rest = parser.parse_known_args()
    failed = 0
    for name in args.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                failure = check(Case(args.program, unpack(name, folder), rest), args.points, args.runs)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                failure = str(error)
        failed += bool(failure)
        print(f"FAIL  {name}: {failure}" if failure else f"ok    {name}", flush=True)
    print(f"{len(args.cases or CASES) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
