#!/usr/bin/env python3
"""Plans models within many budgets and prints how good the plans are.

budget_sweep.py PLIMSOLL MODEL... [--devices h200,rtx4090] [--points 25] [--random SEED] [--budgets BYTES,...] [--options FILE] [--jobs 1] [--curve] [--table] [compile options...]

A model is an ONNX file, or an archive of tests/golden; one that is called model.onnx has the name of its folder.

For each model and device, budgets run in equal steps from the least that compile names to the plain need. --random draws
them between these two instead, from the seed, the model and the device, with equal chances for equal ratios, so that
small budgets, where copies fill the arena, are not rare; --budgets names them; the floor comes besides. A row says:
plain need and time; the floor, beside the bound of the op that needs most by itself, and the least of another way to
the same update; violations (a plan above its budget, a longer step or a refusal for more budget, a floor that is
refused); the most packing waste, see below; how far a step is above the line between the plans a tenth of the plain
need to either side; seconds of wall clock and of processors that a plan took, and a refusal; and MiB resident. --curve
prints the plans too, --table rows of Markdown. FILE has lines `name options...`: compile options for the model of that
name. Seconds are those of --jobs compilations at a time. Exits 1 where there is a violation, or a job that cannot be
planned, whose error takes the place of its row.

Packing waste is what a layout takes above the bytes that are alive at its peak, as far as the step needs it: a layout
that fits is not searched further. So where one takes more than 1 % above them, a plan is asked for within 1 % above
them, and if that takes at most 0.2 % longer, what it needs counts. --curve prints both, the layout's height first.
Within the floor no plan needs less, so there all of the height counts; the most above the floor is printed besides.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time

DONE, OVER_BUDGET = 0, 4
NEIGHBOUR = 0.1  # of the plain need
MAX_WASTE, MAX_SLOWDOWN = 0.01, 0.002  # of the live bytes and of the step, as passes/budget/pack_copies.h has them
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclasses.dataclass
class Try:
    budget: int
    promised: int = 0  # 0: refused
    step_us: float = 0
    arena: int = 0
    live: int = 0  # at the peak
    waste: float = 0
    wall_s: float = 0
    cpu_s: float = 0
    resident_mib: float = 0
    floor: int = 0  # of a refusal, as are these:
    bound: float = 0  # bytes that one op needs by itself
    same_update: float = 0  # bytes of the way to the same update that needs least; 0: no other way needs less

    def above_live(self):
        return self.arena / self.live - 1 if self.live else 0


def bytes_in(pattern, text):
    found = re.search(pattern + r" ([\d.]+) ([KMG]?i?B)", text)
    return float(found.group(1)) * UNITS[found.group(2)] if found else 0


class Planner:
    def __init__(self, program, model, options, folder):
        self.command = [program, "compile", model, *options]
        self.program, self.folder = program, folder

    def within(self, budget):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return self.compile(budget, str(pathlib.Path(folder) / "plan"))

    def with_waste(self, budget):
        """Bytes of a layout that a hardly slower plan does without are not wasted."""
        tried = self.within(budget)
        if tried.above_live() > MAX_WASTE:
            least = tried.promised - tried.arena + tried.live
            lower = self.within(least + int(MAX_WASTE * tried.live))
            if lower.promised and lower.step_us <= (1 + MAX_SLOWDOWN) * tried.step_us:
                tried.waste = max(0, lower.promised - least) / tried.live
        return tried

    def compile(self, budget, plan):
        tried = Try(budget)
        start = time.monotonic()
        process = subprocess.Popen([*self.command, "--budget", str(budget), "-o", plan], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        errors = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        tried.wall_s, tried.cpu_s = time.monotonic() - start, used.ru_utime + used.ru_stime
        tried.resident_mib = used.ru_maxrss / 1024
        if process.returncode == OVER_BUDGET:
            tried.floor = int(re.search(r"\((\d+) bytes", errors).group(1))
            tried.bound = bytes_in("alone needs", errors)
            tried.same_update = bytes_in("an update of as many samples needs least with [^,]*,", errors)
            return tried
        if process.returncode != DONE:
            raise RuntimeError(" ".join(self.command) + f" --budget {budget}\n{errors}")
        report = json.loads(subprocess.run([self.program, "inspect", "--json", plan], capture_output=True, text=True,
                                           check=True).stdout)
        memory = report["memory"]["device"]
        tried.promised, tried.arena, tried.live = (memory[key] for key in ("promised_bytes", "arena_bytes", "peak_live_bytes"))
        tried.waste = tried.above_live()
        tried.step_us = report["time"]["predicted_step_us"]
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


@dataclasses.dataclass
class Sweep:
    plain: Try
    refusal: Try
    tries: list

    def __post_init__(self):
        self.fitting = [each for each in self.tries if each.promised]
        self.off, self.at = above_line(self.fitting, self.plain.promised)
        self.found = violations(self.tries, self.refusal.floor)
        self.slowest = max(self.tries, key=lambda each: each.cpu_s)
        self.waste = max((each.waste for each in self.fitting), default=0)
        self.waste_above_floor = max((each.waste for each in self.fitting[1:]), default=0)
        self.floor_us = self.fitting[0].step_us if self.fitting else 0
        self.resident_mib = max(each.resident_mib for each in self.tries)

    def curve(self):
        yield f"{'budget GiB':>11} {'promised':>9} {'step ms':>10} {'height %':>8} {'waste %':>8} {'wall s':>7} {'CPU s':>7}"
        for each in self.tries:
            yield (f"{each.budget / 2**30:11.3f} {each.promised / 2**30:9.3f} {each.step_us / 1e3:10.2f}"
                   f" {100 * each.above_live():8.2f} {100 * each.waste:8.2f} {each.wall_s:7.1f} {each.cpu_s:7.1f}")

    def line(self):
        plain, refusal, slowest = self.plain, self.refusal, self.slowest
        another = f", {refusal.same_update / 2**30:.3f} by another way to the same update" if refusal.same_update else ""
        return (f"plain {plain.promised / 2**30:.3f} GiB, {plain.step_us / 1e3:.2f} ms, waste {100 * plain.waste:.2f} %; "
                f"floor {refusal.floor / 2**30:.3f} GiB, {self.floor_us / 1e3:.2f} ms, {refusal.bound / 2**30:.3f} of them one op's{another}; "
                f"violations {len(self.found)}; most waste {100 * self.waste:.2f} %, above the floor {100 * self.waste_above_floor:.2f} %; "
                f"above the line {100 * self.off:.1f} % at {self.at / 2**30:.2f} GiB; "
                f"a plan {slowest.wall_s:.1f} s, {slowest.cpu_s:.1f} CPU s at most; "
                f"a refusal {refusal.wall_s:.1f} s, {refusal.cpu_s:.1f} CPU s; {self.resident_mib:.0f} MiB")

    def row(self, name):
        plain, refusal = self.plain, self.refusal
        another = f", {refusal.same_update / 2**30:.2f}" if refusal.same_update else ""
        return (f"| {name} | {plain.promised / 2**30:.2f} GiB, {plain.step_us / 1e3:.3g} ms | {refusal.floor / 2**30:.2f}{another} GiB, {self.floor_us / 1e3:.3g} ms |"
                f" {refusal.bound / 2**30:.2f} | {len(self.found)} | {100 * plain.waste:.1f}, {100 * self.waste:.1f}, {100 * self.waste_above_floor:.1f} % | {100 * self.off:.1f} % |"
                f" {self.slowest.cpu_s:.0f}, {refusal.cpu_s:.0f} | {self.resident_mib:.0f} |")


HEADS = ["model, device", "plain", "floor, another way to the same update", "one op needs", "violations", "waste: plain, most, most above the floor", "above the line",
         "CPU s of a plan, of a refusal, at most", "MiB resident"]


def equal_steps(least, most, points):
    return sorted({least + (most - least) * point // (points - 1) for point in range(points)})


def random_budgets(least, most, points, seed):
    drawn = random.Random(seed)
    return [least, *sorted(int(least * (most / least) ** drawn.random()) for _ in range(points))]


def sweep(planner, budgets_between, pool):
    plain, refusal = list(pool.map(planner.within, [2**50, 1]))
    budgets = budgets_between(refusal.floor, plain.promised)
    return Sweep(plain, refusal, list(pool.map(planner.with_waste, budgets)))


def name_of(model):
    path = pathlib.Path(model)
    return path.parent.name if path.name == "model.onnx" else path.name.split(".")[0]


def unpacked(model, folder):
    if not model.endswith(".tar.xz"):
        return model
    into = pathlib.Path(folder) / pathlib.Path(model).name.split(".")[0]
    if not into.exists():
        into.mkdir()
        with tarfile.open(model) as archive:
            archive.extractall(into, filter="data")
    return str(min(into.rglob("*.onnx")))


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
    parser.add_argument("--random", metavar="SEED")
    parser.add_argument("--budgets", metavar="BYTES,...")
    parser.add_argument("--options")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked, rest = parser.parse_known_args()
    options, good = options_of(asked.options), True
    jobs = [(model, device) for model in asked.models for device in asked.devices.split(",")]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(asked.jobs) as sweeps, \
            concurrent.futures.ThreadPoolExecutor(asked.jobs) as compilations:
        files = {model: unpacked(model, folder) for model in asked.models}

        def run(job):
            model, device = job
            words = [*options.get(name_of(model), []), *rest, "--device", device]

            def budgets_between(least, most):
                if asked.budgets:
                    return [least, *sorted(map(int, asked.budgets.split(",")))]
                if asked.random is None:
                    return equal_steps(least, most, asked.points)
                return random_budgets(least, most, asked.points, f"{asked.random} {name_of(model)} {device}")

            try:
                return sweep(Planner(asked.plimsoll, files[model], words, folder), budgets_between, compilations)
            except RuntimeError as error:  # the others go on
                return error

        if asked.table:
            print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS))
        for (model, device), done in zip(jobs, sweeps.map(run, jobs)):
            title = f"{name_of(model)}, {device}"
            if isinstance(done, RuntimeError):
                print(f"{title}: {done}", flush=True)
                good = False
                continue
            print(done.row(title) if asked.table else f"{title}: {done.line()}")
            lines = [*(done.curve() if asked.curve else []), *("    " + each for each in done.found)]
            print("".join(line + "\n" for line in lines), end="", flush=True)
            good &= not done.found
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
