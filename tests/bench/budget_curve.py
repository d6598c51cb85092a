"""Plans one model within many budgets and prints the bytes and the time of each plan.

budget_curve.py PLIMSOLL MODEL.onnx [--points 20] [compile options...]

Budgets run from the least that compile names to the plain need. Exits 1 when a larger budget takes longer
or is refused where a smaller one is not, or when a plan is above its budget.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time


def compile_under(options, budget, plan):
    command = [options.plimsoll, "compile", options.model, "-o", str(plan), *options.rest]
    if budget:
        command += ["--budget", str(budget)]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode == 4:
        return None, seconds, done.stderr
    if done.returncode != 0:
        sys.exit(done.stderr)
    shown = subprocess.run([options.plimsoll, "inspect", "--json", str(plan)], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout), seconds, ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plimsoll")
    parser.add_argument("model")
    parser.add_argument("--points", type=int, default=20)
    options, options.rest = parser.parse_known_args()
    folder = tempfile.TemporaryDirectory()
    plan = pathlib.Path(folder.name) / "plan"

    plain, _, error = compile_under(options, 2**50, plan)
    top = plain["memory"]["device"]["promised_bytes"]
    _, _, error = compile_under(options, 1, plan)
    floor = int(re.search(r"\((\d+) bytes", error).group(1))
    print(f"{'budget GiB':>10} {'needs GiB':>10} {'step ms':>10} {'added %':>8} {'compile s':>9}")
    failed, slowest, fitted = False, float("inf"), False
    for point in range(options.points):
        budget = floor + (top - floor) * point // (options.points - 1)
        got, seconds, _ = compile_under(options, budget, plan)
        if not got:
            print(f"{budget / 2**30:10.3f} {'refused':>10} {'':>10} {'':>8} {seconds:9.2f}")
            failed |= fitted
            continue
        fitted = True
        needs, step, again = got["memory"]["device"]["promised_bytes"], got["time"]["predicted_step_us"], got["time"]["recompute_us"]
        print(f"{budget / 2**30:10.3f} {needs / 2**30:10.3f} {step / 1e3:10.2f} {100 * again / (step - again):8.2f} {seconds:9.2f}", flush=True)
        failed |= needs > budget or step > slowest * (1 + 1e-9)
        slowest = step
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
