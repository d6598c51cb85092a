#!/usr/bin/env python3
"""Ranks that evaluate, predict and measure, and hosts that several share. Needs Python's standard library alone; parts that need mpirun are left out where it is not installed.

Usage: ranks_commands_test.py PLIMSOLL [--cards N]

With --cards it only predicts on up to N GPUs.
"""
import json
import math
import pathlib
import shlex
import struct
import subprocess
import tempfile

from started_ranks import DEVICE, LONGEST, MODELS, PROGRAM, arguments, check, check_one_tells, checks_made, free_port, launchers, outputs_of, start, unpack, words, write_samples


def count_hosts(case):
    """What the ranks of a host hold of its memory is added up by host, and a plan is within it."""
    def compile_on(memory):
        file, plan = case / "hosts.json", case / "hosts.plan"
        file.write_text(json.dumps({"hosts": 2, "cards": 2, "host_memory_bytes": memory, "network": {"base_us": 60, "gb_per_s": 40}}))
        command = [PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device", "cpu", "--mesh", "data=4", "--cluster", file]
        return plan, subprocess.run(command, capture_output=True, text=True)

    plan, done = compile_on(1 << 30)
    check(done.returncode == 0, done.stderr)
    host = json.loads(subprocess.check_output([PROGRAM, "inspect", plan, "--json"]))["memory"]["host"]
    check([(each["first_rank"], each["ranks"], each["held_bytes"]) for each in host["hosts"]] == [(rank, 2, 2 * host["held_bytes"]) for rank in (0, 2)], f"{host}")
    check((host["host_memory_bytes"], host["held_budget_bytes"]) == (1 << 30, 1 << 30), f"{host['hosts']}")
    report = subprocess.check_output([PROGRAM, "inspect", plan], text=True)
    check("hosts 0 to 1, each 2 ranks" in report and "of 1 GiB" in report, report)
    _, done = compile_on(2 * host["held_bytes"] - 1)
    check(done.returncode == 4 and "of host memory" in done.stderr, f"a host that is too small: {done.stderr}")
    check(", the share of each of a host's 2 ranks in " in done.stderr, f"a host that is too small: {done.stderr}")


def share_a_host(case):
    """--host-budget is that of all ranks of a host: of those that the plan expects there, and of those that are there."""
    def compile_on(budget, *more):
        plan = case / "share.plan"
        command = [PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device", "cpu", "--mesh", "data=2", "--host-budget", budget, *more]
        return plan, subprocess.run(command, capture_output=True, text=True)

    plan, _ = compile_on("1GiB")
    held = json.loads(subprocess.check_output([PROGRAM, "inspect", plan, "--json"]))["memory"]["host"]["held_bytes"]
    _, done = compile_on(str(2 * held - 1))
    check(done.returncode == 4 and ", the share of each of a host's 2 ranks in " in done.stderr, done.stderr)
    plan, done = compile_on(str(2 * held))
    check(done.returncode == 0 and " of host memory for the 2 ranks of a host" in done.stdout, f"{done}")
    codes, outputs = outputs_of([words(case, plan, 1)] * 2)
    check(codes == [0, 0], f"{outputs}")
    # A plan for ranks on two hosts, started on one.
    hosts = case / "two_hosts.json"
    hosts.write_text(json.dumps({"hosts": 2, "cards": 1, "network": {"base_us": 60, "gb_per_s": 40}}))
    plan, done = compile_on(str(held), "--cluster", hosts)
    check(done.returncode == 0, done.stderr)
    codes, outputs = outputs_of([words(case, plan, 1)] * 2)
    check(codes == [4, 4], f"{codes}: {outputs}")
    check_one_tells(codes, outputs, "the 2 ranks here take ", "two ranks where one was planned")
    check("more than the plan's budget of " in outputs[0][1] and "it counts on 1 rank for each host" in outputs[0][1], f"{outputs}")
    # Each rank's cache fits into this machine, both do not.
    with open("/proc/meminfo") as meminfo:
        free = next(int(line.split()[1]) for line in meminfo if line.startswith("MemAvailable:")) << 10
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(pathlib.Path("/sys/fs/cgroup/memory.current").read_text()))
    plan, _ = compile_on("1TiB")
    codes, outputs = outputs_of([words(case, plan, 1, "--cache", f"{free * 6 // 10 >> 20}MiB")] * 2)
    check(codes == [5, 5], f"{codes}: {outputs}")
    check_one_tells(codes, outputs, "the 2 ranks here take ", "two ranks with too large a cache")
    check(" of host memory (arenas " in outputs[0][1] and " are available" in outputs[0][1], f"{outputs}")


def evaluate_on_ranks(folder):
    """Each of two ranks evaluates its share; of the last batch they have 2 and 1 samples, or 1 and none."""
    model, plans = MODELS / "no_loss.onnx", {}
    for mesh in ("data=1", "data=2"):
        plans[mesh] = folder / f"evaluate.{mesh}.plan"
        subprocess.run([PROGRAM, "compile", model, "-o", plans[mesh], "--device", "cpu", "--loss", "cross-entropy:logits:labels", "--mesh", mesh, "--lr", "0.1",
                        "--metric", "accuracy", "--metric", "f1"], check=True, capture_output=True)
    for samples in (11, 9):
        data, saved, metrics = write_samples(folder / f"{samples}.safetensors", samples), folder / "evaluated.safetensors", folder / f"{samples}.jsonl"
        train = [PROGRAM, "run", plans["data=2"], "--weights", model, "--data", data, "--steps", "3", "--evaluate-data", data, "--save", saved, "--metrics", metrics]
        again = [PROGRAM, "evaluate", plans["data=2"], "--weights", saved, "--data", data, "--metrics", folder / "ranks.json"]
        for command in (train, again):
            port = free_port()
            processes = [start(list(map(str, command)), rank, 2, port) for rank in range(2)]
            outputs = [process.communicate(timeout=LONGEST) for process in processes]
            check(all(process.returncode == 0 for process in processes), f"evaluation on two ranks: {outputs}")
        subprocess.run([PROGRAM, "evaluate", plans["data=1"], "--weights", saved, "--data", data, "--metrics", folder / "alone.json"], check=True, capture_output=True)
        alone, ranks = (json.loads((folder / name).read_text()) for name in ("alone.json", "ranks.json"))
        during = [json.loads(line) for line in metrics.read_text().splitlines()][-1]["evaluation"]
        for name in ("loss", "accuracy", "f1"):
            check(all(abs(each[name] - alone[name]) < 1e-6 for each in (ranks, during)), f"{name} of {samples} samples: {alone}, {ranks}, {during}")
        check(ranks["samples"] == alone["samples"] == samples, f"{ranks['samples']} samples")


def evaluate_on_meshes(case):
    """Ranks with parts of the weights, or with pieces of them, find what one rank finds, for any number of samples."""
    found = {}
    for name, mesh in (("alone", ["--mesh", "data=1"]), ("tensor", ["--mesh", "tensor=2"]), ("zero", ["--mesh", "data=2", "--zero", "3"])):
        plan, result = case / f"evaluate.{name}.plan", case / f"evaluate.{name}.json"
        subprocess.run([PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device", "cpu", "--evaluate-batch", "2", "--metric", "accuracy", *mesh], check=True, capture_output=True)
        command = list(map(str, [PROGRAM, "evaluate", plan, "--weights", case / "model.onnx", "--data", case / "batch.safetensors", "--metrics", result, "--threads", 1]))
        port, ranks = free_port(), 1 if name == "alone" else 2
        processes = [start(command, rank, ranks, port) for rank in range(ranks)]
        outputs = [process.communicate(timeout=120) for process in processes]
        check(all(process.returncode == 0 for process in processes), f"evaluation on {mesh}: {outputs}")
        found[name] = json.loads(result.read_text())
    for name in ("tensor", "zero"):
        check(all(abs(found[name][key] - found["alone"][key]) < 1e-5 for key in ("loss", "accuracy", "samples")), f"{found}")


def fail_other_commands(case, launchers):
    """Commands that do not train end like those that do: one rank says why, whichever it is."""
    plan, whole, broken = case / "fail.plan", case / "fail_whole.plan", case / "fail.safetensors"
    for name, mesh in ((plan, "data=2"), (whole, "data=1")):
        subprocess.run([PROGRAM, "compile", case / "model.onnx", "-o", name, "--device", "cpu", "--evaluate-batch", "2", "--mesh", mesh], check=True, capture_output=True)
    broken.write_bytes(b"no tensors")
    model, data = case / "model.onnx", case / "batch.safetensors"

    def command(name, plan, weights, data):
        output = {"evaluate": [], "verify": [], "predict": ["-o", case / "predicted.safetensors"]}[name]
        return list(map(str, [PROGRAM, name, plan, "--weights", weights, "--data", data, "--threads", 1, *output]))

    def devices(name):
        return list(map(str, [PROGRAM, "devices", "--measure", "--device", name]))

    evaluate, predict = (command(name, plan, model, data) for name in ("evaluate", "predict"))
    for commands, text in (([evaluate, command("evaluate", plan, case / "none.onnx", data)], "rank 1: "), ([command("evaluate", plan, model, broken)] * 2, "fail.safetensors"),
                           ([evaluate, command("evaluate", plan, model, broken)], "rank 1: "), ([command("evaluate", plan, model, broken), evaluate], "rank 0: "),
                           ([predict] * 2, "there is nothing to predict"),
                           ([predict] * 3, "the plan is for 2 ranks (data=2), 3 are running"), ([command("verify", whole, model, data)] * 3, "verify compares the step of one process; 3 are running"),
                           ([devices("none")] * 2, "none"), ([devices("cpu"), devices("cpu"), devices("none")], "rank 2: ")):
        check_one_tells(*outputs_of(commands), text, f"{commands[-1][1]} on {len(commands)} ranks")
    for mpirun in launchers:
        for ranks in (2, 3):
            bad = [devices("none"), devices("cpu")] if ranks == 3 else [command("evaluate", plan, model, broken), evaluate]
            own = "if [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ]; then exec %s; else exec %s; fi" % tuple(" ".join(map(shlex.quote, each)) for each in bad)
            done = subprocess.run([*mpirun, "-n", str(ranks), "sh", "-c", own], capture_output=True, text=True, timeout=LONGEST)
            said = [line for line in done.stderr.splitlines() if "plimsoll: error" in line]
            check(done.returncode != 0 and len(said) == 1 and "rank 1: " in said[0], f"{mpirun[0]}: {done.stderr}")


def predict_on_ranks(folder, most_ranks=4):
    """Ranks that share the rows write the predictions of one rank, also of samples that do not fill their last batch."""
    data, found = write_samples(folder / "to_predict.safetensors", 11), {}
    for mesh, more in (("data=1", []), ("data=2", ["--zero", "3"]), ("data=4", []), ("data=2,tensor=2", []), ("stage=2", [])):
        ranks = math.prod(int(axis[-1]) for axis in mesh.split(","))
        if ranks > most_ranks:
            continue
        plan, predicted = folder / f"predict.{mesh}.plan", folder / f"predict.{mesh}.safetensors"
        subprocess.run([PROGRAM, "compile", MODELS / "no_loss.onnx", "-o", plan, "--device", DEVICE, "--loss", "cross-entropy:logits:labels", "--evaluate-batch", "2", "--mesh", mesh, *more], check=True, capture_output=True)
        codes, outputs = outputs_of([list(map(str, [PROGRAM, "predict", plan, "--weights", MODELS / "no_loss.onnx", "--data", data, "-o", predicted, "--threads", 1]))] * ranks)
        check(not any(codes), f"predict on {mesh}: {outputs}")
        check(all("wrote" in out if rank == 0 else out == "" for rank, (out, _) in enumerate(outputs)), f"predict on {mesh}: {outputs}")
        raw = predicted.read_bytes()
        head = 8 + struct.unpack("<Q", raw[:8])[0]
        check(json.loads(raw[8:head])["logits"]["shape"][0] == 11, f"predict on {mesh}: {raw[8:head]}")
        found[mesh] = struct.unpack(f"<{(len(raw) - head) // 4}f", raw[head:])
    check(all(max(map(lambda a, b: abs(a - b), found["data=1"], each)) < (1e-3 if arguments.cards else 1e-6) for each in found.values()), f"predictions: {found}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        case = unpack("mlp", folder)
        if arguments.cards:
            return predict_on_ranks(case, arguments.cards)
        count_hosts(case)
        share_a_host(case)
        evaluate_on_ranks(case)
        evaluate_on_meshes(case)
        predict_on_ranks(case)
        fail_other_commands(case, launchers())
    print(f"{checks_made()} checks")


if __name__ == "__main__":
    main()
