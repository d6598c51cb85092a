#!/usr/bin/env python3
"""Plans models within many budgets and prints how good the plans are.

budget_sweep.py PLIMSOLL MODEL... [--devices h200,rtx4090] [--points 25] [--options FILE] [--curve] [compile options...]

A model is an ONNX file, or an archive of tests/golden.

For each model and device, budgets run in equal steps from the least that compile names to the plain need. A row says:
plain need and time; the floor; violations (a plan above its budget, a longer step or a refusal for more budget, a floor
that is refused); the most packing waste; how far a step is above the line between the plans a tenth of the plain need
to either side; seconds of wall clock and of processors that a plan took, and a refusal; and MiB resident. --curve
prints the plans too. FILE has lines `name options...`: compile options for the model of that file name. Exits 1 where
there is a violation.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time

DONE, OVER_BUDGET = 0, 4
NEIGHBOUR = 0.1  # of the plain need


@dataclasses.dataclass
class Try:
    budget: int
    promised: int = 0  # 0: refused
    step_us: float = 0
    waste: float = 0
    wall_s: float = 0
    cpu_s: float = 0
    resident_mib: float = 0
    floor: int = 0  # of a refusal


class Planner:
    def __init__(self, program, model, options, folder):
        self.command = [program, "compile", model, *options]
        self.program, self.plan = program, str(pathlib.Path(folder) / "plan")

    def within(self, budget):
        tried = Try(budget)
        start = time.monotonic()
        process = subprocess.Popen([*self.command, "--budget", str(budget), "-o", self.plan], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        errors = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        tried.wall_s, tried.cpu_s = time.monotonic() - start, used.ru_utime + used.ru_stime
        tried.resident_mib = used.ru_maxrss / 1024
        if process.returncode == OVER_BUDGET:
            tried.floor = int(re.search(r"\((\d+) bytes", errors).group(1))
            return tried
        if process.returncode != DONE:
            sys.exit(errors)
        plan = json.loads(subprocess.run([self.program, "inspect", "--json", self.plan], capture_output=True, text=True,
                                         check=True).stdout)
        memory = plan["memory"]["device"]
        tried.promised, tried.waste = memory["promised_bytes"], memory["packing_waste"]
        tried.step_us = plan["time"]["predicted_step_us"]
        return tried


def violations(tries, floor):
    """Of plans in the order of their budgets, the first of which is the floor."""
    found, fastest = [], float("inf")
    for each in tries:
        if not each.promised:
            if each.budget >= floor:
                found.append(f"{each.budget} is refused, the floor is {floor}")
            continue
        if each.promised > each.budget:
            found.append(f"{each.promised} promised within {each.budget}")
        if each.step_us > fastest * (1 + 1e-9):
            found.append(f"{each.step_us:.0f} us within {each.budget}, {fastest:.0f} with less")
        fastest = min(fastest, each.step_us)
    return found


def above_line(tries, plain_bytes):
    """The largest share by which a step is above the line between its neighbours, and its budget."""
    worst = (0.0, 0)
    for each in tries:
        below = [other for other in tries if other.budget <= each.budget - NEIGHBOUR * plain_bytes]
        above = [other for other in tries if other.budget >= each.budget + NEIGHBOUR * plain_bytes]
        if not below or not above:
            continue
        left, right = below[-1], above[0]
        part = (each.budget - left.budget) / (right.budget - left.budget)
        line = left.step_us + part * (right.step_us - left.step_us)
        worst = max(worst, (each.step_us / line - 1, each.budget))
    return worst


def sweep(planner, points, curve):
    plain = planner.within(2**50)
    refusal = planner.within(1)
    least, most = refusal.floor, plain.promised
    budgets = sorted({least + (most - least) * point // (points - 1) for point in range(points)})
    tries = [planner.within(budget) for budget in budgets]
    if curve:
        print(f"{'budget GiB':>11} {'promised':>9} {'step ms':>10} {'waste %':>8} {'wall s':>7} {'CPU s':>7}")
        for each in tries:
            print(f"{each.budget / 2**30:11.3f} {each.promised / 2**30:9.3f} {each.step_us / 1e3:10.2f} {100 * each.waste:8.2f}"
                  f" {each.wall_s:7.1f} {each.cpu_s:7.1f}")
    fitting = [each for each in tries if each.promised]
    off, at = above_line(fitting, most)
    found = violations(tries, least)
    slowest = max(tries, key=lambda each: each.cpu_s)
    print(f"plain {most / 2**30:.3f} GiB, {plain.step_us / 1e3:.2f} ms, waste {100 * plain.waste:.2f} %; "
          f"floor {least / 2**30:.3f} GiB, {fitting[0].step_us / 1e3 if fitting else 0:.2f} ms; "
          f"violations {len(found)}; most waste {100 * max(each.waste for each in fitting):.2f} %; "
          f"above the line {100 * off:.1f} % at {at / 2**30:.2f} GiB; "
          f"a plan {slowest.wall_s:.1f} s, {slowest.cpu_s:.1f} CPU s at most; "
          f"a refusal {refusal.wall_s:.1f} s, {refusal.cpu_s:.1f} CPU s; {max(each.resident_mib for each in tries):.0f} MiB",
          flush=True)
    for each in found:
        print("    " + each, flush=True)
    return not found


def unpacked(model, folder):
    if not model.endswith(".tar.xz"):
        return model
    into = pathlib.Path(folder) / pathlib.Path(model).name.split(".")[0]
    if not into.exists():
        into.mkdir()
        with tarfile.open(model) as archive:
            archive.extractall(into, filter="data")
    return str(next(into.rglob("*.onnx")))


def options_of(path):
    options = {}
    if path:
        for line in pathlib.Path(path).read_text().splitlines():
            if line.strip():
                name, *words = line.split()
                options[name] = words
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--devices", default="h200,rtx4090,cpu")
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--options")
    parser.add_argument("--curve", action="store_true")
    asked, rest = parser.parse_known_args()
    options, good = options_of(asked.options), True
    with tempfile.TemporaryDirectory() as folder:
        for model in asked.models:
            for device in asked.devices.split(","):
                name = pathlib.Path(model).name.split(".")[0]
                print(f"{name}, {device}: ", end="\n" if asked.curve else "", flush=True)
                words = [*options.get(name, []), *rest, "--device", device]
                planner = Planner(asked.plimsoll, unpacked(model, folder), words, folder)
                good &= sweep(planner, asked.points, asked.curve)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
