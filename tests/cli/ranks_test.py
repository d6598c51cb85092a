#!/usr/bin/env python3
"""Starts plans of several ranks as launchers do. Needs Python's standard library alone; parts that need mpirun are left out where it is not installed.

Usage: ranks_test.py PLIMSOLL [--cards N [--times 20] [--at-once 1]]

With --cards it only kills and stops one of N ranks on as many GPUs, at random moments.
"""
import concurrent.futures
import json
import os
import pathlib
import random
import shlex
import signal
import struct
import subprocess
import tempfile
import time

from started_ranks import LONGEST, MODELS, PROGRAM, arguments, check, check_one_tells, checks_made, compile_plan, free_port, launchers, losses, outputs_of, start, unpack, words


def run_by_environment(case, plan, ranks, metrics, *more):
    port = free_port()
    processes = [start(words(case, plan, 4, "--metrics", metrics, *more), rank, ranks, port) for rank in range(ranks)]
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    check(all(process.returncode == 0 for process in processes), f"ranks by RANK and WORLD_SIZE fail: {outputs}")
    check(outputs[1][0] == "", "the second rank prints")
    return losses(metrics)


PATIENCE = 10 if arguments.cards else 3  # seconds; a first step on a card connects the ranks, which takes some


def seconds_to_end():
    """In which ranks have to end that know why. Many processes for each processor may take ten times as long."""
    return 10 if os.getloadavg()[0] < 2 * os.cpu_count() else 100


def wait_for_steps(metrics, processes, steps=3):
    """Until a few steps are through."""
    begin = time.monotonic()
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > steps):
        for process in processes:
            check(process.poll() is None, f"a rank ends early: {process.stderr.read() if process.poll() is not None else ''}")
        check(time.monotonic() - begin < LONGEST, "ranks do not train")
        time.sleep(0.1)


def stages_of(plan):
    return next((int(each.removeprefix("stage=")) for each in plan.stem.split(",") if each.startswith("stage=")), 1)


def lose_a_rank(case, plan, ranks, lost, stop, wait=0.0):
    """The others end soon after a rank is killed or stopped, one of them with a message that names it, and leave no file under its final name.

    Returns the seconds that took."""
    port, saved = free_port(), case / "saved.safetensors"
    metrics = case / f"lost.{port}.jsonl"
    command = words(case, plan, 1000000, "--save", saved, "--metrics", metrics, "--patience", PATIENCE)
    processes = [start(command, rank, ranks, port) for rank in range(ranks)]
    wait_for_steps(metrics, processes)
    time.sleep(wait)
    processes[lost].send_signal(signal.SIGSTOP if stop else signal.SIGKILL)
    begin = time.monotonic()
    what = f"rank {lost} " + (f"has stood still for {PATIENCE} s" if stop else "has gone")
    teller = 1 if lost == 0 else 0
    for rank in range(ranks):
        if rank == lost:
            continue
        _, errors = processes[rank].communicate(timeout=LONGEST)
        check(processes[rank].returncode == 5, f"rank {rank} exits {processes[rank].returncode}: {errors}")
        places = ("at instruction ", "outside a step")
        said = [line for line in errors.splitlines() if "error" in line]
        if rank == teller:
            check(any(said[:1] and f"plimsoll: error: rank {rank}: {what}, last seen {place}" in said[0] for place in places), f"rank {rank} says {errors}")
            check(len(said) == 1, f"rank {rank} says more than once: {errors}")
            # Another stage has another plan, whose names this rank does not know.
            stage, own_stage = (each * stages_of(plan) // ranks for each in (lost, rank))
            check(stage == own_stage or "outside a step" in said[0] or said[0].endswith(f" of stage {stage}"), f"rank {rank} names a place of another stage: {errors}")
        else:
            check(said == ([f"plimsoll: error: rank {rank}: ends with rank 0"] if lost == 0 else []), f"rank {rank} says {errors}")
    took = time.monotonic() - begin
    check(took < (PATIENCE if stop else 0) + seconds_to_end(), f"the others end after {took:.1f} s")
    check(not saved.exists(), "weights were saved")
    metrics.unlink()
    if stop:
        processes[lost].send_signal(signal.SIGCONT)
        processes[lost].communicate(timeout=LONGEST)
    return took


def two_at_once(calls):
    """Jobs that lose a rank mostly wait for one that stands still."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(*call) for call in calls]
    for job in jobs:
        job.result()


def suspend_all_ranks(case, plan, ranks):
    """A job that is stopped as a whole for longer than its patience, as clusters do, goes on where it was."""
    port, metrics = free_port(), case / "suspended.jsonl"
    command = words(case, plan, 1000000, "--metrics", metrics, "--patience", PATIENCE)
    processes = [start(command, rank, ranks, port) for rank in range(ranks)]
    wait_for_steps(metrics, processes)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    time.sleep(PATIENCE + 1)
    before = len(metrics.read_text().splitlines())
    for process in processes:
        process.send_signal(signal.SIGCONT)
    wait_for_steps(metrics, processes, before + 100)
    for process in processes:
        process.kill()
        process.communicate(timeout=LONGEST)


def lose_ranks_of_cards(case, cards, times):
    """At random moments of a step, over the mesh's axes; several jobs share the cards."""
    draw, plans = random.Random(1), [compile_plan(case, f"{axis}={cards}") for axis in ("data", "stage")]
    count, took = {False: times, True: max(1, times // 5)}, {}
    for stop in count:
        jobs = [(case, plans[i % 2], cards, draw.randrange(cards), stop, draw.random()) for i in range(count[stop])]
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
            took[stop] = list(pool.map(lambda job: lose_a_rank(*job), jobs))
    print(f"{count[False]} killed: the others ended within {max(took[False]):.1f} s; {count[True]} stopped: within {max(took[True]):.1f} s, of which {PATIENCE} s are patience")


def lose_a_rank_of_mpi(case, plan, mpirun, stop):
    """The same where a launcher of MPI ends what is left."""
    pids, metrics = case / f"pids.{mpirun[0]}.{stop}", case / f"lost.{mpirun[0]}.{stop}.jsonl"
    pids.mkdir()
    command = " ".join(map(shlex.quote, words(case, plan, 1000000, "--metrics", metrics, "--patience", PATIENCE)))
    own = f"echo $$ > {pids}/${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}; exec {command}"
    job = subprocess.Popen([*mpirun, "-n", "4", "sh", "-c", own], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_steps(metrics, [job])
    os.kill(int((pids / "1").read_text()), signal.SIGSTOP if stop else signal.SIGKILL)
    begin = time.monotonic()
    _, errors = job.communicate(timeout=LONGEST)
    check(job.returncode != 0, f"{mpirun[0]} exits 0 without a rank")
    took = time.monotonic() - begin
    check(took < (PATIENCE if stop else 0) + seconds_to_end(), f"{mpirun[0]}: the others end after {took:.1f} s")
    check(not stop or "rank 1 has stood still" in errors, f"{mpirun[0]}: {errors}")
    check(errors.count("plimsoll: error") <= 1, f"{mpirun[0]}: more than one rank tells why: {errors}")


def fail_on_ranks(case, plan, launchers):
    """Where ranks cannot go on by themselves one says why, whether one fails or all do; the others end with its exit code."""
    (case / "broken.safetensors").write_bytes(b"no tensors")

    def words_of(rank, data, failing):
        command = words(case, plan, 1000000, "--patience", PATIENCE)
        command[command.index("--data") + 1] = str(data if rank in failing else case / "batch.safetensors")
        return command

    # Before the ranks meet a file is missing, after that it cannot be read.
    for weights, data, failing, text in ((None, case / "broken.safetensors", {2}, "rank 2: "), (None, case / "broken.safetensors", {0, 1, 2, 3}, "broken.safetensors"),
                                         (case / "none.onnx", case / "batch.safetensors", {0, 1, 2, 3}, "none.onnx")):
        commands = [words_of(rank, data, failing) for rank in range(4)]
        if weights:
            for command in commands:
                command[command.index("--weights") + 1] = str(weights)
        check_one_tells(*outputs_of(commands), text, f"{failing} of four ranks fail")
    own = "if [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 1 ]; then exec %s; else exec %s; fi"
    failing, other = (" ".join(map(shlex.quote, words_of(rank, case / "broken.safetensors", {1}))) for rank in (1, 0))
    for mpirun in launchers:
        done = subprocess.run([*mpirun, "-n", "4", "sh", "-c", own % (failing, other)], capture_output=True, text=True, timeout=LONGEST)
        said = [line for line in done.stderr.splitlines() if "plimsoll: error" in line]
        check(done.returncode != 0 and len(said) == 1 and "rank 1: " in said[0], f"{mpirun[0]}: {done.stderr}")


def share_uneven_rows(case):
    """Three ranks share eight rows as three, three and two, and lose what one rank loses."""
    alone, uneven = compile_plan(case, "data=1"), compile_plan(case, "data=3")
    subprocess.run(words(case, alone, 4, "--metrics", case / "alone.jsonl"), check=True, capture_output=True)
    got = run_by_environment(case, uneven, 3, case / "uneven.jsonl")
    check(all(abs(a - b) < 1e-5 for a, b in zip(losses(case / "alone.jsonl"), got)), f"three ranks: {got}")


def refuse_other_ranks(case, plan):
    """Ranks with different plans, or of different builds, do not start."""
    note, other = struct.pack("<III4s", 4, 20, 3, b"GNU"), case / "other_build"
    program = bytearray(pathlib.Path(PROGRAM).read_bytes())
    id_begin = program.find(note) + len(note)
    check(id_begin >= len(note), "the linker notes no build")
    program[id_begin] ^= 1
    other.write_bytes(program)
    other.chmod(0o755)
    other_plan = compile_plan(case, "tensor=2")
    for command, text in (([other, *words(case, plan, 1)[1:]], "runs another build of this program"), (words(case, other_plan, 1), "has another plan")):
        port = free_port()
        processes = [start(words(case, plan, 1), 0, 2, port), start(list(map(str, command)), 1, 2, port)]
        outputs = [process.communicate(timeout=LONGEST) for process in processes]
        check([process.returncode for process in processes] == [2, 2], f"{text}: {outputs}")
        check(f"rank 1 {text} than rank 0" in outputs[0][1] and "error" not in outputs[1][1], f"{text}: {outputs}")


def measure_links(case):
    """Ranks on CPUs measure how they talk, and a plan for them is predicted by it."""
    port = free_port()
    processes = [start([PROGRAM, "devices", "--measure", "--device", "cpu"], rank, 2, port) for rank in range(2)]
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    check(all(process.returncode == 0 for process in processes), f"devices --measure: {outputs}")
    check(outputs[1][0] == "", "the second rank prints what was measured")
    cluster = json.loads(outputs[0][0])
    check((cluster["hosts"], cluster["cards"]) == (1, 2), f"devices --measure: {cluster}")
    check({each["op"] for each in cluster["measured"]} == {"reduce_all", "reduce_pieces", "gather_pieces"}, f"devices --measure: {cluster}")
    slow = {"cards": 2, "link": {"base_us": 1e6, "gb_per_s": 0.001}}  # slower than ranks of the busiest machine
    times = []
    for name, description in (("measured", cluster), ("slow", slow)):
        file, plan = case / f"{name}.json", case / f"{name}.plan"
        file.write_text(json.dumps(description))
        subprocess.run([PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device", "cpu", "--mesh", "data=2", "--cluster", file], check=True, capture_output=True)
        report = json.loads(subprocess.check_output([PROGRAM, "inspect", plan, "--json"]))
        times.append(report["time"]["ranks_us"])
        check(sum(each["predicted_us"] for each in report["collectives"]) > 0, "no collective is listed")
    check(times[1] > 10 * times[0], f"a slow link is not predicted: {times}")


def show_ranks(case, plan):
    """What a plan of several ranks looks like, measured and planned for other numbers of cards."""
    report = subprocess.check_output([PROGRAM, "inspect", plan], text=True)
    check("waits for the others" in report and "x reduce_all along data" in report, report)
    time = json.loads(subprocess.check_output([PROGRAM, "inspect", plan, "--json"]))["time"]
    computing = time["forward_us"] + time["backward_us"] + time["update_us"]
    check(time["ranks_us"] > 0 and computing + time["exposed_us"] <= time["predicted_step_us"] * 1.001, f"collectives count as computing: {time}")
    page = case / "report.html"
    subprocess.run([PROGRAM, "inspect", plan, "--html", page], check=True)
    check("<title>ranks</title>" in page.read_text(), "the page has no lane for ranks")
    port, times = free_port(), case / "times.json"
    processes = [start(words(case, plan, 1, "--profile", times), rank, 2, port) for rank in range(2)]
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    check("collectives, each alone" in outputs[0][0] and "reduce_all %" in outputs[0][0], f"run --profile: {outputs}")
    # Two micro-batches of 1f1b have few enough transfers for all to be listed.
    port, stages = free_port(), compile_plan(case, "stage=2", "--micro-batches", "2", "--schedule", "1f1b")
    processes = [start(words(case, stages, 1, "--profile", times), rank, 2, port) for rank in range(2)]
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    check(all(text in outputs[0][0] for text in ("stage 0 send %", "stage 1 receive %", "stage 1 broadcast %loss")), f"run --profile of stages: {outputs}")
    table = subprocess.check_output([PROGRAM, "fit", case / "model.onnx", "--device", "cpu", "--cards", "4", "--zero", "1"], text=True)
    rows = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]
    check([row[0] for row in rows] == ["1", "2", "4"] and all("yes" in row for row in rows), f"fit --cards: {table}")


def train_with_lengths(folder):
    """Two ranks take the same lengths as one rank with their batches together, whatever they divide, and lose as much."""
    lengths = [2, 1, 2, 2, 3, 4, 3, 3, 7, 8, 7, 5]
    ids = [3 * i % 7 for i in range(sum(lengths))]
    body, header = b"", {}
    for name, values in (("ids", ids), ("labels", [i % 2 for i in ids]), ("lengths", lengths)):
        header[name] = {"dtype": "I64", "shape": [len(values)], "data_offsets": [len(body), len(body) + 8 * len(values)]}
        body += struct.pack(f"<{len(values)}q", *values)
    data, head = folder / "ragged.safetensors", json.dumps(header).encode()
    data.write_bytes(struct.pack("<Q", len(head)) + head + body)
    model, got = MODELS / "tokens.onnx", {}
    for mesh in ("data=1", "data=2", "tensor=2", "stage=2"):
        plan, metrics = folder / f"lengths.{mesh}.plan", folder / f"lengths.{mesh}.jsonl"
        subprocess.run([PROGRAM, "compile", model, "-o", plan, "--device", "cpu", "--lengths", "seq=4,2,8", "--mesh", mesh, "--lr", "0.1"], check=True, capture_output=True)
        command = list(map(str, [PROGRAM, "run", plan, "--weights", model, "--data", data, "--epochs", 4, "--threads", 1, "--metrics", metrics]))
        port, ranks = free_port(), int(mesh[-1])
        processes = [start(command, rank, ranks, port) for rank in range(ranks)]
        outputs = [process.communicate(timeout=120) for process in processes]
        check(all(process.returncode == 0 for process in processes), f"lengths on {mesh}: {outputs}")
        got[mesh] = losses(metrics)
    check(len(got["data=1"]) == 12 and all(max(each) - min(each) < 1e-5 for each in zip(*got.values())), f"lengths: {got}")


def run_stages(case):
    """Two stages lose what one rank loses, and save a file that one rank goes on from as from its own."""
    alone, stages = compile_plan(case, "data=1"), compile_plan(case, "stage=2")
    saved = {plan: case / f"{plan.stem}.safetensors" for plan in (alone, stages)}
    again = []
    subprocess.run(words(case, alone, 4, "--metrics", case / "alone.jsonl", "--save", saved[alone]), check=True, capture_output=True)
    got = run_by_environment(case, stages, 2, case / "stages.jsonl", "--save", saved[stages])
    check(all(abs(a - b) < 1e-5 for a, b in zip(losses(case / "alone.jsonl"), got)), f"two stages: {got}")
    for plan in (alone, stages):
        subprocess.run(words(case, alone, 1, "--metrics", case / "again.jsonl", weights=saved[plan]), check=True, capture_output=True)
        again.append(losses(case / "again.jsonl")[0])
    check(abs(again[0] - again[1]) < 1e-5, f"from the weights of two stages: {again}")


def name_largest_stage(case):
    """The second stage of this pipeline holds more than the first; `compile` and `fit` name what the largest needs."""
    plan = case / "largest.plan"
    options = ["--device", "cpu", "--mesh", "stage=2", "--schedule", "1f1b"]
    told = subprocess.check_output([PROGRAM, "compile", case / "model.onnx", "-o", plan, *options], text=True)
    row = subprocess.check_output([PROGRAM, "fit", case / "model.onnx", *options], text=True).splitlines()[-1]
    stages = [line.split() for line in subprocess.check_output([PROGRAM, "inspect", plan], text=True).splitlines() if line.startswith("  stage ")]
    needs = [f"{stage[2]} {stage[3]}" for stage in stages]
    check(needs[0] != needs[1] and f"needs {needs[1]} on cpu" in told and needs[1] in row, f"{needs}: {told} {row}")


def refuse_options(case):
    """Options that nobody could follow, or that would do nothing."""
    refusals = (
        (["--mesh", "data=2,data=2"], "--mesh: a mesh has the axis data once"),
        (["--mesh", "stage=2", "--zero", "3"], "--zero 3: only ranks that share the batch have a use for it; give them, such as --mesh data=2"),
        (["--batch-norm", "local"], "--batch-norm local: only ranks that share the batch have a use for it; give them, such as --mesh data=2"),
        (["--gradient-sums", "bf16"], "--gradient-sums bf16: only ranks that share the batch have a use for it; give them, such as --mesh data=2"),
        (["--mesh", "data=2", "--schedule", "v"], "--schedule: only a pipeline has one; give its stages, such as --mesh stage=2"),
        (["--mesh", "data=2", "--gpus", "3"], "--mesh data=2 has 2 ranks, --gpus says 3"),
        (["--devices", "cpu,cpu,cpu", "--gpus", "2"], "--devices names 3 ranks, --gpus says 2"),
        (["--devices", "cpu,,cpu"], "--devices cpu,,cpu: a name is missing"),
        (["--mesh", "data=5"], "divide-batch: input x has 8 rows, which do not divide by 5 ranks; with 2 for each, the last ranks would have none"),
    )
    for options, text in refusals:
        device = [] if "--devices" in options else ["--device", "cpu"]
        done = subprocess.run([PROGRAM, "compile", case / "model.onnx", "-o", case / "refused.plan", *device, *options], capture_output=True, text=True)
        check(done.returncode == 2 and done.stderr.strip().splitlines()[-1] == f"plimsoll: error: {text}", f"{options}: {done.stderr}")
    done = subprocess.run([PROGRAM, "fit", case / "model.onnx", "--device", "cpu", "--cards", "2", "--mesh", "data=2"], capture_output=True, text=True)
    check(done.returncode == 2 and done.stderr.endswith("--cards chooses a mesh for 1, 2, 4 and more cards; leave out --mesh\n"), done.stderr)


def plan_unlike(case):
    """Ranks on unlike devices: what they are asked for with, what is refused, and how the plans look."""
    two_cpus = pathlib.Path(__file__).resolve().parent.parent / "golden" / "two_cpus.json"

    def compile_on(devices, *more):
        plan = case / "unlike.plan"
        command = [PROGRAM, "compile", case / "model.onnx", "-o", plan, "--device-file", two_cpus, "--devices", devices, *more]
        return plan, subprocess.run(command, capture_output=True, text=True)

    def refusal(exit_code, devices, *more):
        _, done = compile_on(devices, *more)
        check(done.returncode == exit_code, f"{devices} {more} exits {done.returncode}: {done.stderr}")
        return done.stderr.strip().splitlines()[-1]  # behind the phases, which are shown where they take long

    plan, done = compile_on("quick,slow", "--budget", "4GiB,1GiB")
    check(done.returncode == 0 and " of 4 GiB on quick, stage 1 needs " in done.stdout and " of 1 GiB on slow" in done.stdout, f"{done}")
    report = subprocess.check_output([PROGRAM, "inspect", plan], text=True)
    check("stage 0 on quick" in report and "stage 1 on slow" in report and "and a processor of a third the speed" in report, report)
    shown = json.loads(subprocess.check_output([PROGRAM, "inspect", plan, "--json"]))
    check((shown["mesh"], shown["device"], shown["later_stages"][0]["device"]) == ("stage=2", "quick", "slow"), f"{shown['mesh']}")
    page = case / "unlike.html"
    subprocess.run([PROGRAM, "inspect", plan, "--html", page], check=True)
    check("<td>slow</td>" in page.read_text(), "the page has no row for the slow stage")

    plan, done = compile_on("quick,slow", "--mesh", "data=2")
    check(done.returncode == 0 and " on quick+slow" in done.stdout, f"{done}")
    shown = json.loads(subprocess.check_output([PROGRAM, "inspect", plan, "--json"]))
    check([(kind["device"], kind["ranks"]) for kind in shown["kinds"]] == [("quick", [0]), ("slow", [1])], f"{shown['kinds']}")
    check("device slow budget 549755813888 bytes, ranks 1\n" in subprocess.check_output([PROGRAM, "inspect", plan, "--text"], text=True), "no device line")
    _, done = compile_on("slow,slow")
    check(done.returncode == 0 and " on slow," in done.stdout, f"{done}")

    text = refusal(4, "quick,slow", "--budget", "4GiB,90MiB", "--recompute", "off", "--offload", "off")
    check(text.startswith("plimsoll: error: stage 1 (rank 1, slow) needs ") and "; budgets of 4 GiB, " in text, text)
    text = refusal(4, "quick,slow", "--budget", "4GiB,90MiB", "--mesh", "data=2", "--recompute", "off", "--offload", "off")
    check("the budget of rank 1 (slow) is 90 MiB" in text, text)
    text = refusal(2, "quick,slow,quick,slow", "--mesh", "data=2,stage=2")
    check(text.endswith("list the devices as quick,quick,slow,slow"), text)
    text = refusal(2, "quick,slow", "--budget", "1GiB,2GiB,3GiB")
    check(text.endswith("--budget 1GiB,2GiB,3GiB: 3 sizes for 2 ranks; give one for all or one for each"), text)
    text = refusal(2, "quick,slow", "--mesh", "stage=4")
    check(text.endswith("--mesh stage=4 has 4 ranks, --devices names 2"), text)
    text = refusal(2, "quick,h200")
    check(text.endswith("quick and h200 cannot share a job: one is a GPU and one is not"), text)
    text = refusal(2, "quick,slow", "--tune", case / "times.json")
    check("--devices names unlike ones" in text, text)


def main():
    with tempfile.TemporaryDirectory() as folder:
        case = unpack("mlp", folder)
        if arguments.cards:
            return lose_ranks_of_cards(case, arguments.cards, arguments.times)
        two, four, stages = (compile_plan(case, mesh) for mesh in ("data=2", "data=4", "data=2,stage=2"))
        one = subprocess.run(words(case, two, 1), capture_output=True, text=True)
        check(one.returncode == 2 and "the plan is for 2 ranks (data=2), 1 is running" in one.stderr, f"one of two ranks: {one.stderr}")
        lacking = subprocess.run(words(case, two, 1), capture_output=True, text=True, env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"})
        check(lacking.returncode == 2 and "WORLD_SIZE is 2, and MASTER_ADDR is not set" in lacking.stderr, f"without MASTER_ADDR: {lacking.stderr}")
        by_environment = run_by_environment(case, two, 2, case / "environment.jsonl")
        check(by_environment[-1] < by_environment[0], "the loss does not fall")
        refuse_other_ranks(case, two)
        measure_links(case)
        show_ranks(case, two)
        two_at_once((lose_a_rank, case, plan, 4, lost, stop) for lost, stop in ((1, False), (2, True), (0, False), (0, True)) for plan in (four, stages))
        suspend_all_ranks(case, two, 2)
        share_uneven_rows(case)
        run_stages(case)
        refuse_options(case)
        train_with_lengths(case)
        plan_unlike(case)
        fail_on_ranks(case, four, launchers())
        for mpirun, *options in launchers():
            metrics = case / f"{mpirun}.jsonl"
            done = subprocess.run([mpirun, *options, "-n", "2", *words(case, two, 4, "--metrics", metrics)], capture_output=True, text=True, timeout=LONGEST)
            check(done.returncode == 0, f"{mpirun}: {done.stderr}")
            check(losses(metrics) == by_environment, f"{mpirun}: {losses(metrics)}, not {by_environment}")
        two_at_once((lose_a_rank_of_mpi, case, four, launcher, stop) for launcher in launchers() for stop in (False, True))
    print(f"{checks_made()} checks")


if __name__ == "__main__":
    main()
