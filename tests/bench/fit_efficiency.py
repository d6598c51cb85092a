#!/usr/bin/env python3
"""Computes the `efficiency` of a device description, the share of its roofline that each op reaches, from the times of `run --profile`.

Usage: fit_efficiency.py PLIMSOLL MODEL.onnx:CACHE... [--device h200] [--dim NAME=N] [--min-us 15]

Each model is planned in bf16 with the times of its cache. An op's share is the sum of its rooflines over the sum of its measured times, over all models. Instructions shorter than --min-us
are left out, because they measure the launch. Prints JSON for ir/machine/devices.json, without shares near or above 1 (gather reads only part of its operand) and below 0.2 (latencies).
"""
import argparse
import collections
import json
import pathlib
import subprocess
import tempfile


def instructions_of(args, model, cache, folder):
    """Instructions with measured times: (op, roofline, measured) in us."""
    plan = folder / "model.plan"
    words = [args.program, "compile", model, "-o", plan, "--device", args.device, "--precision", "bf16"]
    words += [word for dim in args.dim for word in ("--dim", dim)]
    def report(extra):
        subprocess.run([*words, *extra], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(subprocess.check_output([args.program, "inspect", plan, "--json"]))["instructions"]
    guessed = {(each["op"], each["kernel"], each["flops"], each["bytes_moved"]): each["predicted_us"] for each in report([])}
    for each in report(["--timings", cache]):
        key = each["op"], each["kernel"], each["flops"], each["bytes_moved"]
        if each["predicted_us"] != guessed.get(key) and not each["op"].startswith("to_"):
            yield each["op"], each["roofline_us"], each["predicted_us"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx:CACHE")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--min-us", type=float, default=15)
    args = parser.parse_args()
    roofline, measured = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for pair in args.models:
            model, _, cache = pair.rpartition(":")
            for op, min_us, us in instructions_of(args, model, cache, pathlib.Path(folder)):
                if us >= args.min_us:
                    roofline[op] += min_us
                    measured[op] += us
    shares = {op: round(roofline[op] / measured[op], 2) for op in sorted(measured)}
    print(json.dumps({op: share for op, share in shares.items() if 0.2 <= share < 0.97}))


if __name__ == "__main__":
    main()
