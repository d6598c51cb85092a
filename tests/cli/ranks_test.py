#!/usr/bin/env python3
"""Starts plans of several ranks as launchers do. Needs Python's standard library alone; parts that need mpirun are left out where it is not installed.

Usage: ranks_test.py PLIMSOLL
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from check_golden import unpack  # noqa: E402

PROGRAM = sys.argv[1]
checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"ranks_test: {what}")


def free_port():
    with socket.socket() as found:
        found.bind(("", 0))
        return str(found.getsockname()[1])


def compile_plan(case, ranks):
    plan = case / f"ranks{ranks}.plan"
    subprocess.run([PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device", "cpu", "--gpus", str(ranks)], check=True, capture_output=True)
    return plan


def words(case, plan, steps, *more):
    return list(map(str, [PROGRAM, "run", plan, "--weights", case / "model.onnx", "--data", case / "batch.safetensors", "--steps", steps, "--threads", 1, *more]))


def start(command, rank, ranks, port):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(path):
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def run_by_environment(case, plan, ranks, metrics):
    port = free_port()
    processes = [start(words(case, plan, 4, "--metrics", metrics), rank, ranks, port) for rank in range(ranks)]
    outputs = [process.communicate(timeout=120) for process in processes]
    check(all(process.returncode == 0 for process in processes), f"ranks by RANK and WORLD_SIZE fail: {outputs}")
    check(outputs[1][0] == "", "the second rank prints")
    return losses(metrics)


def kill_a_rank(case, plan, ranks):
    """The others end within seconds, name themselves, and leave no file under its final name."""
    port, saved = free_port(), case / "saved.safetensors"
    processes = [start(words(case, plan, 1000000, "--save", saved), rank, ranks, port) for rank in range(ranks)]
    time.sleep(3)
    check(all(process.poll() is None for process in processes), "a rank ends before it is killed")
    processes[1].kill()
    begin = time.monotonic()
    for rank in (0, 2, 3):
        _, errors = processes[rank].communicate(timeout=60)
        check(processes[rank].returncode != 0, f"rank {rank} exits {processes[rank].returncode}")
        check(f"rank {rank}: " in errors, f"rank {rank} says {errors}")
    check(time.monotonic() - begin < 10, "the others end late")
    check(not saved.exists(), "weights were saved")


def main():
    with tempfile.TemporaryDirectory() as folder:
        case = unpack("mlp", folder)
        two, four = compile_plan(case, 2), compile_plan(case, 4)
        one = subprocess.run(words(case, two, 1), capture_output=True, text=True)
        check(one.returncode == 2 and "the plan is for 2 ranks (data=2), 1 is running" in one.stderr, f"one of two ranks: {one.stderr}")
        by_environment = run_by_environment(case, two, 2, case / "environment.jsonl")
        check(by_environment[-1] < by_environment[0], "the loss does not fall")
        kill_a_rank(case, four, 4)
        for mpirun, options in (("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]), ("mpirun.mpich", [])):
            if not shutil.which(mpirun) or not (pathlib.Path(PROGRAM).parent.parent / "lib" / f"libplimsoll_{mpirun.split('.')[1]}.so").exists():
                continue
            metrics = case / f"{mpirun}.jsonl"
            done = subprocess.run([mpirun, *options, "-n", "2", *words(case, two, 4, "--metrics", metrics)], capture_output=True, text=True, timeout=120)
            check(done.returncode == 0, f"{mpirun}: {done.stderr}")
            check(losses(metrics) == by_environment, f"{mpirun}: {losses(metrics)}, not {by_environment}")
    print(f"{checks} checks")


if __name__ == "__main__":
    main()
