#!/usr/bin/env python3
"""Stops, kills and starves runs that write checkpoints, and holds the resumed ones to the bits of a run that was never stopped.

Usage: checkpoint_test.py PLIMSOLL [--kills 200] [TEST ...]

Needs Python's standard library alone. Prints one line per test and `N passed, N failed`.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "examples" / "quickstart"
DEVICES = QUICKSTART.parents[1] / "ir" / "machine" / "devices.json"
MODEL, TOKENS = QUICKSTART / "small_gpt.onnx", QUICKSTART / "tokens.bin"
DONE, USAGE, BAD_MODEL, BUDGET, MACHINE, STOPPED = 0, 2, 3, 4, 5, 6

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("tests", nargs="*")
parser.add_argument("--kills", type=int, default=6)
arguments = parser.parse_intermixed_args()


class Failure(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failure(text)


def compile_plan(folder, name, *options):
    """By default with all that has a state: dropout, a loss scale, accumulated micro-batches."""
    plan = folder / name
    options = options or ("--precision", "fp16", "--accumulate", 2, "--clip-grad-norm", 1)
    device = () if "--device" in options else ("--device", "cpu")
    if "--dim" not in options:
        options += ("--dim", "batch=1")
    subprocess.run(list(map(str, [arguments.program, "compile", MODEL, "-o", plan, *device, *options])), check=True, capture_output=True)
    return plan


def words(plan, steps, *more, weights=MODEL):
    first = ["--weights", weights] if weights else []
    return list(map(str, [arguments.program, "run", plan, *first, "--data", TOKENS, "--steps", steps, "--threads", 1, *more]))


def run(plan, steps, *more, weights=MODEL, code=DONE, file_limit=None):
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    done = subprocess.run(words(plan, steps, *more, weights=weights), capture_output=True, text=True, timeout=600,
                          preexec_fn=limit_files if file_limit else None)
    expect(done.returncode == code, f"exits {done.returncode} instead of {code}: {done.stderr.strip()[-300:]}")
    return done.stderr


def refuse_to_start(words, texts, **limits):
    def limit_memory():
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))

    done = subprocess.run(words, capture_output=True, text=True, timeout=600, preexec_fn=limit_memory if limits else None)
    expect(done.returncode == MACHINE, f"exits {done.returncode}: {done.stderr.strip()[-300:]}")
    for text in texts:
        expect(text in done.stderr, f"no '{text}' in: {done.stderr.strip()[-300:]}")


def steps_in(folder):
    return sorted(int(each.name.removeprefix("step-")) for each in folder.iterdir() if each.name.startswith("step-")) if folder.exists() else []


def newest(folder):
    return folder / f"step-{steps_in(folder)[-1]:06}"


def numbers(metrics):
    """What each step computed, by its number; times differ from run to run."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{key: line.get(key) for key in ("step", "loss", "grad_norm", "learning_rate", "loss_scale", "skipped_steps")} for line in lines]


def same_bytes(one, other):
    expect(one.read_bytes() == other.read_bytes(), f"{one.name} and {other.name} differ")


def same_states(one, other):
    for file in ("weights.safetensors", "states.safetensors"):
        same_bytes(one / file, other / file)


def test_resuming_gives_the_same_bits(folder):
    plan = compile_plan(folder, "p.plan")
    whole, parts = folder / "whole", folder / "parts"
    run(plan, 6, "--seed", 3, "--checkpoint", whole, "--metrics", folder / "whole.jsonl", "--save", folder / "whole.safetensors")
    logs = ["--csv", folder / "parts.csv", "--tensorboard", folder / "events"]
    run(plan, 3, "--seed", 3, "--checkpoint", parts, "--every", 2, "--metrics", folder / "parts.jsonl", *logs)
    expect(steps_in(parts) == [2, 3], f"every second step and the last: {steps_in(parts)}")
    text = run(plan, 6, "--checkpoint", parts, "--every", 2, "--resume", "auto", "--metrics", folder / "parts.jsonl", *logs, "--save", folder / "parts.safetensors", weights=None)
    expect(f"resumes {parts}/step-000003, step 3" in text, text)
    expect(steps_in(parts) == [3, 4, 6], f"three are kept: {steps_in(parts)}")
    same_states(newest(whole), newest(parts))
    same_bytes(folder / "whole.safetensors", folder / "parts.safetensors")
    expect(numbers(folder / "whole.jsonl") == numbers(folder / "parts.jsonl"), "the metrics differ")
    rows = (folder / "parts.csv").read_text().splitlines()
    expect([row.split(",")[0] for row in rows] == ["step", "1", "2", "3", "4", "5", "6"], f"{rows}")
    expect(len(list((folder / "events").iterdir())) == 1, "the events of one run are in one file")


def write_samples(path, count):
    x = [float((7 * i) % 11) for i in range(3 * count)]
    bytes_x, labels = struct.pack(f"<{3 * count}f", *x), struct.pack(f"<{count}q", *(i % 2 for i in range(count)))
    header = json.dumps({"x": {"dtype": "F32", "shape": [count, 3], "data_offsets": [0, len(bytes_x)]},
                         "labels": {"dtype": "I64", "shape": [count], "data_offsets": [len(bytes_x), len(bytes_x) + len(labels)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes_x + labels)
    return path


def test_resuming_amid_an_epoch(folder):
    """Of 22 samples an epoch has 5 batches; which samples a batch has depends on the seed and its number."""
    data, model = write_samples(folder / "samples.safetensors", 22), pathlib.Path(__file__).parent / "models" / "linear.onnx"
    plan, whole, parts = folder / "p.plan", folder / "whole", folder / "parts"
    subprocess.run([arguments.program, "compile", model, "-o", plan, "--device", "cpu", "--accumulate", "2"], check=True, capture_output=True)

    def train(*more):
        done = subprocess.run(list(map(str, [arguments.program, "run", plan, "--weights", model, "--data", data, "--threads", 1, *more])), capture_output=True, text=True)
        expect(done.returncode == DONE, done.stderr)

    train("--epochs", 4, "--seed", 8, "--checkpoint", whole)
    train("--steps", 3, "--seed", 8, "--checkpoint", parts)
    train("--epochs", 4, "--checkpoint", parts, "--resume", "auto")
    expect(steps_in(parts) == [3, 10], f"four epochs are 20 batches, two a step: {steps_in(parts)}")
    same_states(newest(whole), newest(parts))


def test_an_older_checkpoint_starts_another_history(folder):
    plan, kept = compile_plan(folder, "p.plan"), folder / "kept"
    run(plan, 4, "--checkpoint", kept, "--every", 1, "--keep", 9)
    run(plan, 3, "--checkpoint", kept, "--every", 9, "--keep", 9, "--resume", kept / "step-000002", weights=None)
    text = run(plan, 5, "--checkpoint", kept, "--resume", "auto", weights=None)
    expect("step 3" in text, f"the newest is the one that was written last: {text}")


def test_another_plan_of_the_model(folder):
    first, kept = compile_plan(folder, "p.plan"), folder / "kept"
    run(first, 2, "--checkpoint", kept)
    plain = compile_plan(folder, "plain.plan", "--precision", "fp32", "--dim", "batch=3")
    text = run(plain, 3, "--resume", kept, "--save", folder / "plain.safetensors", weights=None)
    expect("growth_tracker, loss_scale, skipped_steps" in text and "are not used" in text, text)
    expect("had read 4 batches of 1 samples, the plan has batches of 3: the data go on with batch 1" in text, text)
    sgd = compile_plan(folder, "sgd.plan", "--optimizer", "sgd", "--momentum", 0.9)
    text = run(sgd, 3, "--resume", kept, weights=None)
    expect("states that the checkpoint lacks get first values: " in text and ".momentum" in text, text)


def last_loss(metrics):
    return numbers(metrics)[-1]["loss"]


def test_moments_of_another_form(folder):
    """Moments of a checkpoint become 8-bit codes, floats and bf16; codes of one rank are those of two."""
    forms = {form: compile_plan(folder, f"{form}.plan", "--precision", "fp32", "--dim", "batch=2", "--moments", form) for form in ("f32", "bf16", "8bit")}
    losses = {}
    for form, plan in forms.items():
        run(plan, 3, "--checkpoint", folder / form, "--metrics", folder / "metrics.jsonl")
        run(plan, 5, "--checkpoint", folder / f"{form}.parts", "--metrics", folder / "metrics.jsonl")
        losses[form] = last_loss(folder / "metrics.jsonl")
    expect(abs(losses["8bit"] - losses["f32"]) < 0.01 * losses["f32"], f"{losses}")
    f32, eight = ((newest(folder / form) / "states.safetensors").stat().st_size for form in ("f32", "8bit"))
    expect(eight < 0.3 * f32, f"the states of 8-bit moments take {eight} bytes, those of f32 ones {f32}")
    for first, second in (("f32", "8bit"), ("8bit", "f32"), ("f32", "bf16"), ("bf16", "8bit")):
        text = run(forms[second], 5, "--resume", folder / first, "--metrics", folder / "metrics.jsonl", weights=None)
        expect("states of another dtype in the checkpoint are converted" in text, text)
        for missing in ("lacks", "not used"):
            expect(missing not in text, text)
        loss = last_loss(folder / "metrics.jsonl")
        expect(abs(loss - losses["f32"]) < 0.01 * losses["f32"], f"from {first} to {second}: {loss}, {losses}")
    two = compile_plan(folder, "two.plan", "--precision", "fp32", "--dim", "batch=2", "--moments", "8bit", "--mesh", "data=2", "--zero", 3)
    run_on_two_ranks(two, 5, "--checkpoint", folder / "two", "--resume", folder / "8bit")
    text = run(forms["8bit"], 6, "--resume", folder / "two", weights=None)
    expect("converted" not in text and "lacks" not in text, text)


def test_weights_without_masters(folder):
    """Rounded by chance, a stopped run gives the bits of one that was not, and a step is that of the reference."""
    options = ("--precision", "bf16", "--dim", "batch=2", "--moments", "8bit")
    masters, plan = (compile_plan(folder, f"{when}.plan", *options, "--master-weights", when) for when in ("auto", "off"))
    whole, parts = folder / "whole", folder / "parts"
    run(masters, 30, "--metrics", folder / "masters.jsonl", "--checkpoint", folder / "masters")
    run(plan, 30, "--metrics", folder / "metrics.jsonl", "--checkpoint", whole, "--save", folder / "off.safetensors")
    run(plan, 11, "--checkpoint", parts)
    run(plan, 30, "--checkpoint", parts, "--resume", "auto", weights=None)
    same_states(newest(whole), newest(parts))
    want, got = last_loss(folder / "masters.jsonl"), last_loss(folder / "metrics.jsonl")
    expect(abs(got - want) < 0.02 * want, f"the loss is {got}, with masters {want}")
    small, large = ((newest(each) / "weights.safetensors").stat().st_size for each in (whole, folder / "masters"))
    expect(small < 0.6 * large, f"weights take {small} bytes, with masters {large}")
    done = subprocess.run(list(map(str, [arguments.program, "verify", plan, "--weights", MODEL, "--data", TOKENS])), capture_output=True, text=True, timeout=600)
    expect(done.returncode == DONE, done.stderr[-300:])


def test_updates_in_pieces(folder):
    """Within the least budget updates come from the host piece by piece; checkpoints know nothing of it."""
    card = next(each for each in json.loads(DEVICES.read_text())["devices"] if each["name"] == "cpu")
    card.update(name="card", reserves=[], memory_bytes=1 << 30, launch_us=0.01, to_host_gb_per_s=12, from_host_gb_per_s=12)
    (folder / "card.json").write_text(json.dumps({"devices": [card]}))
    options = ("--dim", "batch=1", "--device-file", folder / "card.json", "--device", "card")
    plain = compile_plan(folder, "plain.plan", *options)
    tight = compile_plan(folder, "tight.plan", *options, "--budget", "1640KiB")
    text = subprocess.run([arguments.program, "inspect", tight, "--text"], check=True, capture_output=True, text=True).stdout
    expect(".next.piece" in text, "the plan has no update in pieces")
    whole, parts = folder / "whole", folder / "parts"
    run(plain, 4, "--checkpoint", whole)
    run(tight, 2, "--checkpoint", parts)
    run(tight, 3, "--checkpoint", parts, "--resume", "auto", weights=None)
    run(plain, 4, "--checkpoint", parts, "--resume", "auto", weights=None)
    same_states(newest(whole), newest(parts))


def start_two_ranks(plan, steps, *more):
    with socket.socket() as found:
        found.bind(("", 0))
        port = str(found.getsockname()[1])
    started = []
    for rank in (0, 1):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started.append(subprocess.Popen(words(plan, steps, *more), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return started


def finish(started, code=DONE):
    for each in started:
        _, text = each.communicate(timeout=600)
        expect(each.returncode == code, f"a rank exits {each.returncode} instead of {code}: {text.strip()[-300:]}")


def run_on_two_ranks(plan, steps, *more):
    finish(start_two_ranks(plan, steps, *more))


def test_other_meshes(folder):
    """Of two ranks each has pieces; the checkpoint has the whole."""
    one, kept = compile_plan(folder, "one.plan", "--dim", "batch=2"), folder / "kept"
    for mesh, zero in (("data=2", 3), ("tensor=2", "auto"), ("stage=2", "auto")):
        two = compile_plan(folder, "two.plan", "--dim", "batch=2", "--mesh", mesh, "--zero", zero)
        whole, parts = folder / f"{mesh}.whole", folder / f"{mesh}.parts"
        run_on_two_ranks(two, 3, "--checkpoint", whole)
        run_on_two_ranks(two, 2, "--checkpoint", parts, "--every", 1)
        run_on_two_ranks(two, 3, "--checkpoint", parts, "--resume", "auto")
        same_states(newest(whole), newest(parts))
        run(one, 4, "--resume", parts, weights=None)
    run(one, 2, "--checkpoint", kept)
    refused = start_two_ranks(two, 3, "--checkpoint", kept)
    _, text = refused[0].communicate(timeout=60)
    expect(refused[0].returncode == USAGE and "of an earlier run" in text, f"the first rank says why: {text}")
    expect(refused[1].wait(timeout=60) != DONE, "the other one ends too")
    run_on_two_ranks(two, 3, "--checkpoint", kept, "--resume", "auto")
    expect(steps_in(kept) == [2, 3], f"{steps_in(kept)}")


def wait_for(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, f"waited in vain for {what}")
        time.sleep(0.01)


def test_signals(folder):
    plan = compile_plan(folder, "p.plan")
    whole, kept = folder / "whole", folder / "kept"
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        before = steps_in(kept)
        started = subprocess.Popen(words(plan, 1000, "--checkpoint", kept, "--every", "1h", "--resume", "auto", "--metrics", folder / "m.jsonl"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = len((folder / "m.jsonl").read_text().splitlines()) if before else 0
        wait_for(lambda: (folder / "m.jsonl").exists() and len((folder / "m.jsonl").read_text().splitlines()) > lines, "a step")
        started.send_signal(each)
        _, text = started.communicate(timeout=120)
        expect(started.returncode == STOPPED, f"exits {started.returncode}: {text[-300:]}")
        expect(len(steps_in(kept)) == len(before) + 1, f"one more checkpoint: {before}, {steps_in(kept)}")
    run(plan, steps_in(kept)[-1], "--checkpoint", whole)
    same_states(newest(whole), newest(kept))


def test_a_signal_to_one_of_two_ranks(folder):
    plan, kept = compile_plan(folder, "two.plan", "--dim", "batch=2", "--mesh", "data=2"), folder / "kept"
    for rank in (0, 1):
        before, metrics = steps_in(kept), folder / f"{rank}.jsonl"
        started = start_two_ranks(plan, 100000, "--checkpoint", kept, "--every", "1s" if rank else "1h", "--keep", 99, "--resume", "auto", "--metrics", metrics)
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, "a step")
        if rank:
            wait_for(lambda: len(steps_in(kept)) > len(before), "a checkpoint by the clock")
        started[rank].terminate()
        finish(started, STOPPED)
        expect(len(steps_in(kept)) > len(before), f"one more checkpoint: {before}, {steps_in(kept)}")


def catches(process, signal_number):
    """Whether the process has a handler for the signal: Linux lists those in a mask, signal 1 at its lowest bit."""
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return mask is not None and int(mask.group(1), 16) >> (signal_number - 1) & 1


def test_a_second_signal_ends_at_once(folder):
    """Its one step of 5000 micro-batches would go on for longer than the test waits."""
    plan, kept = compile_plan(folder, "p.plan", "--accumulate", 5000), folder / "kept"
    started = subprocess.Popen(words(plan, 9, "--checkpoint", kept), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: catches(started, signal.SIGTERM), "a handler of SIGTERM")
    time.sleep(1)
    started.terminate()
    time.sleep(0.2)
    expect(started.poll() is None, f"the first signal ends it: {started.returncode}")
    started.terminate()
    expect(started.wait(timeout=10) == -signal.SIGTERM, f"exits {started.returncode}")


def test_kills_lose_nothing(folder):
    plan, kept = compile_plan(folder, "p.plan"), folder / "kept"
    moments, last, kills = random.Random(arguments.kills), 0, 0
    while kills < arguments.kills:
        started = subprocess.Popen(words(plan, 1000000, "--seed", 5, "--checkpoint", kept, "--every", 1, "--keep", 2, "--resume", "auto"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(moments.uniform(0.02, 1.2))
        started.kill()
        _, text = started.communicate()
        kills += 1
        expect("skipped" not in text and "error" not in text, f"kill {kills}: {text}")
        if "resumes" in text:
            expect(f"step-{last:06}" in text, f"kill {kills}: the newest of before was {last}: {text}")
        there = steps_in(kept)
        expect(there[-1:] >= [last] or last == 0, f"kill {kills}: {last} is lost, there are {there}")
        expect(len(there) <= 3, f"kill {kills}: more than those kept and the newest: {there}")
        last = there[-1] if there else 0
    run(plan, last + 1, "--seed", 5, "--checkpoint", kept, "--resume", "auto")
    expect(not [each for each in kept.iterdir() if each.name.startswith(".")], "parts stay behind")
    run(plan, last + 1, "--seed", 5, "--checkpoint", folder / "whole", "--every", "1h")
    same_states(newest(folder / "whole"), newest(kept))
    print(f"      {kills} kills, {last} steps")


def test_a_full_disk_loses_nothing(folder):
    plan, kept = compile_plan(folder, "p.plan"), folder / "kept"
    run(plan, 2, "--checkpoint", kept)
    text = run(plan, 4, "--checkpoint", kept, "--every", 1, "--resume", "auto", code=MACHINE, file_limit=6 << 20)
    expect("the checkpoint of step 3 was not written" in text and "training goes on" in text, text)
    expect("plimsoll: error: the last checkpoint was not written" in text.splitlines()[-1], text)
    expect([each.name for each in kept.iterdir()] == ["step-000002"], f"{list(kept.iterdir())}")
    expect("step-000002" in run(plan, 3, "--checkpoint", kept, "--resume", "auto"), "the older one resumes")


def test_damaged_files_are_skipped(folder):
    plan, kept = compile_plan(folder, "p.plan"), folder / "kept"
    run(plan, 3, "--checkpoint", kept, "--every", 1)
    dice = random.Random(1)
    for file in sorted(newest(kept).iterdir()):
        good = file.read_bytes()
        at = dice.randrange(len(good))
        # A digit of the record rather than a space, which changes nothing.
        if file.suffix == ".json":
            at = good.index(b'"step": 3') + 8
        for bad in (good[: len(good) // 2], good[:at] + bytes([good[at] ^ 4]) + good[at + 1:], b""):
            file.write_bytes(bad)
            text = run(plan, 2, "--resume", kept, weights=None)
            expect(f"skipped {file}: " in text and "resumes" in text and "step-000002" in text, f"{file.name}: {text}")
            run(plan, 2, "--resume", newest(kept), weights=None, code=BAD_MODEL)
        file.unlink()
        text = run(plan, 2, "--resume", kept, weights=None)
        expect(f"skipped {file}: " in text and "step-000002" in text, text)
        file.write_bytes(good)
    file = newest(kept) / "states.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    text = run(plan, 4, "--checkpoint", kept, "--keep", 1, "--resume", "auto", code=MACHINE, file_limit=6 << 20)
    expect("skipped" in text and "step-000002" in text, text)
    expect(2 in steps_in(kept), f"the last whole one stays until there is another: {steps_in(kept)}")
    text = run(plan, 4, "--checkpoint", kept, "--keep", 1, "--resume", "auto")
    expect("step-000002" in text and steps_in(kept) == [4], f"{steps_in(kept)}: {text}")
    text = run(plan, 3, "--resume", kept, weights=None)
    expect("nothing left to train: the checkpoint has 4 steps, 3 are asked for" in text, text)


def test_parts_of_a_torn_write_are_removed(folder):
    plan, kept = compile_plan(folder, "p.plan"), folder / "kept"
    part = kept / ".step-000001.part"
    part.mkdir(parents=True)
    (part / "weights.safetensors").write_bytes(b"half")
    (kept / "notes.txt").write_text("mine")
    run(plan, 1, "--checkpoint", kept)
    expect(sorted(each.name for each in kept.iterdir()) == ["notes.txt", "step-000001"], f"{list(kept.iterdir())}")


def test_the_best_evaluation_stays(folder):
    """With a rate of 0 all evaluations are alike, so the first stays the best, also when another run goes on."""
    plan, kept = compile_plan(folder, "p.plan", "--evaluate"), folder / "kept"
    options = ("--lr", 0, "--hold-out", 0.1, "--evaluate-every", 2, "--checkpoint", kept, "--every", 3, "--keep", 1)
    run(plan, 6, *options)
    expect(steps_in(kept) == [2, 6], f"{steps_in(kept)}")
    run(plan, 10, *options, "--resume", "auto")
    expect(steps_in(kept) == [2, 10], f"{steps_in(kept)}")
    record = json.loads((newest(kept) / "checkpoint.json").read_text())
    expect((record["metrics"]["best_step"], record["plan"]["best_by"]) == (2, "loss"), f"{record}")
    run(plan, 20, *options, "--resume", "auto", "--early-stop", 4)
    expect(steps_in(kept) == [2, 10], f"an early stop is forgotten: {steps_in(kept)}")


def test_disk_and_host_memory_are_looked_at_first(folder):
    plan, saved = compile_plan(folder, "p.plan"), folder / "saved.safetensors"
    run_words = words(plan, 2, "--checkpoint", folder / "runs", "--keep", 10**9, "--save", saved)
    refuse_to_start(run_words, ["the run writes ", f"to the disk of {folder}", "(1000000001 checkpoints ", f"{saved} ", " are free"])
    job = [arguments.program, "train", "--model", MODEL, "--data", TOKENS, "--device", "cpu", "--dim", "batch=1", "--steps", "2", "--checkpoint", folder / "other", "--keep", 10**9]
    refuse_to_start(list(map(str, job)), [f"to the disk of {folder} (weights of 1000000001 checkpoints ", " are free"])
    expect(not (folder / "other").exists(), "the disk is looked at after the search for a plan")
    large = compile_plan(folder, "large.plan", "--dim", "batch=256", "--split", "off", "--budget", "1TiB")
    refuse_to_start(words(large, 1), ["the run takes ", " of host memory (arenas ", "batches read ahead ", " are available"], memory=1 << 30)
    expect(not saved.exists(), "a run that was refused saves")
    small = compile_plan(folder, "small.plan", "--host-budget", "1MiB")
    refused = subprocess.run(words(small, 1, "--checkpoint", folder / "runs"), capture_output=True, text=True)
    for text in ("--checkpoint: a snapshot takes ", "more than its host budget of 1 MiB; a plan made with --host-budget "):
        expect(refused.returncode == BUDGET and text in refused.stderr, f"exits {refused.returncode}: {refused.stderr}")
    # A plan that holds room back needs no more than its budget with checkpoints either.
    enough = re.search(r"made with --host-budget ([\d.]+) ?MiB", refused.stderr)
    expect(enough, refused.stderr)
    room = ("--for-checkpoints", "--host-budget", f"{math.ceil(float(enough.group(1))) + 1}MiB")
    run(compile_plan(folder, "room.plan", *room), 1, "--checkpoint", folder / "with_room")
    tight = subprocess.run([arguments.program, "compile", MODEL, "-o", folder / "tight.plan", "--device", "cpu", "--dim", "batch=1", "--for-checkpoints", "--host-budget", "1MiB"], capture_output=True, text=True)
    expect(tight.returncode == BUDGET and "of host memory" in tight.stderr, f"exits {tight.returncode}: {tight.stderr}")


def test_refusals(folder):
    plan, kept = compile_plan(folder, "p.plan"), folder / "kept"
    for options, says in ((("--resume", "auto"), "--checkpoint DIR"), (("--checkpoint", kept, "--every", "soon"), "--every soon"),
                          (("--checkpoint", kept, "--every", "0"), "--every 0")):
        expect(says in run(plan, 1, *options, code=USAGE), says)
    expect("has no whole checkpoint" in run(plan, 1, "--resume", folder, code=BAD_MODEL), "nothing to resume")
    run(plan, 1, "--checkpoint", kept)
    expect("of an earlier run" in run(plan, 1, "--checkpoint", kept, code=USAGE), "an earlier run's checkpoints stay")
    (folder / "file").write_text("")
    run(plan, 1, "--checkpoint", folder / "file", code=MACHINE)
    started = subprocess.Popen(words(plan, 100000, "--checkpoint", kept, "--every", 1, "--resume", "auto"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: steps_in(kept) != [1], "a checkpoint")
    expect("another run" in run(plan, 1, "--checkpoint", kept, "--resume", "auto", code=MACHINE), "one run at a time")
    started.kill()
    started.communicate()


def main():
    tests = {name.removeprefix("test_"): test for name, test in globals().items() if name.startswith("test_")}
    wanted, failed = arguments.tests or list(tests), 0
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                tests[name](pathlib.Path(folder))
                print(f"ok    {name}", flush=True)
            except (Failure, subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
                failed += 1
                print(f"FAIL  {name}: {error}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
