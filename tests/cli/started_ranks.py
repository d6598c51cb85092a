"""What tests that start ranks share: they start them as launchers do, and find the launchers of MPI."""
import argparse
import json
import math
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "golden"), str(TESTS / "support")]
from check_golden import unpack  # noqa: E402,F401
from start_ranks import free_port  # noqa: E402,F401

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("--cards", type=int)
parser.add_argument("--times", type=int, default=20)
parser.add_argument("--at-once", type=int, default=1)
arguments = parser.parse_args()
MODELS = pathlib.Path(__file__).resolve().parent / "models"
PROGRAM, DEVICE = arguments.program, "auto" if arguments.cards else "cpu"
LONGEST = 300  # seconds until a rank counts as hung, on a machine that does much else
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"ranks_test: {what}")


def compile_plan(case, mesh, *options):
    plan = case / f"{mesh}.plan"
    subprocess.run([PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device", DEVICE, "--mesh", mesh, *options], check=True, capture_output=True)
    return plan


def words(case, plan, steps, *more, weights=None):
    return list(map(str, [PROGRAM, "run", plan, "--weights", weights or case / "model.onnx", "--data", case / "batch.safetensors", "--steps", steps, "--threads", 1, *more]))


def start(command, rank, ranks, port):
    environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(path):
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def outputs_of(commands):
    """Of ranks, each with its own command line."""
    port = free_port()
    processes = [start(command, rank, len(commands), port) for rank, command in enumerate(commands)]
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    return [process.returncode for process in processes], outputs


def check_one_tells(codes, outputs, text, what):
    said = [line for output in outputs for line in output[1].splitlines() if "error" in line]
    check(len(said) == 1 and text in said[0], f"{what}: {said}")
    check(len(set(codes)) == 1 and 0 not in codes, f"{what}: exit codes {codes}")


def write_samples(path, samples):
    """Rows of three numbers and a class of two."""
    body = struct.pack(f"<{3 * samples}f", *[math.sin(i) for i in range(3 * samples)])
    header = {"x": {"dtype": "F32", "shape": [samples, 3], "data_offsets": [0, len(body)]},
              "labels": {"dtype": "I64", "shape": [samples], "data_offsets": [len(body), len(body) + 8 * samples]}}
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body + struct.pack(f"<{samples}q", *[i * i % 3 % 2 for i in range(samples)]))
    return path


def checks_made():
    return checks


def launchers():
    """Of the MPIs that are installed and that the program was built for."""
    found = (("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]), ("mpirun.mpich", []))
    libraries = pathlib.Path(PROGRAM).parent.parent / "lib"
    return [[mpirun, *options] for mpirun, options in found if shutil.which(mpirun) and (libraries / f"libplimsoll_{mpirun.split('.')[1]}.so").exists()]
