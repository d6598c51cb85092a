#!/usr/bin/env python3
"""Checks that no step after the first allocates. Usage: golden_allocations.py ALLOCATIONS CASE...

ALLOCATIONS is the program of main.cpp, and a CASE one of ../golden. Needs Python's standard library alone.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from check_golden import load_floats, unpack


def main(program, cases):
    failed = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            folder = unpack(case, scratch)
            words = [program, folder / "model.onnx", folder / "batch.safetensors"]
            if json.load(open(folder / "expected.json"))["exporter"] == "torchscript":  # with a dimension called batch
                words.append(str(next(iter(load_floats(folder / "batch.safetensors")[1].values()))[0]))
            status = subprocess.run(words).returncode
        if status == 77:
            return 77
        failed += status != 0
    print("%d passed, %d failed" % (len(cases) - failed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
