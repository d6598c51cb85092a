#!/usr/bin/env python3
"""Drive the plimsoll program as a user would: exit codes, one-line errors, and files that are complete or absent.

Usage: cli_test.py PLIMSOLL [TEST ...]

Needs Python's standard library alone. Prints one line per test and `N passed, N failed`.
"""
import fcntl
import functools
import json
import math
import os
import pathlib
import pickle
import pty
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios

import onnx_writer as onnx

MODELS = pathlib.Path(__file__).resolve().parent / "models"
QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "examples" / "quickstart"
DONE, USAGE, MODEL, BUDGET, MACHINE = 0, 2, 3, 4, 5
PROGRAM = ""


class Failure(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failure(text)


def run(*arguments, file_limit=None):
    def limit_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          preexec_fn=limit_files if file_limit is not None else None)


def succeed(*arguments):
    done = run(*arguments)
    expect(done.returncode == DONE, f"{arguments[0]} exits {done.returncode}: {done.stderr.strip()[:300]}")
    return done.stdout


def refuse(code, texts, *arguments, **limits):
    """Checks that the command exits with `code` and that its last line, an error, contains all of `texts`."""
    done = run(*arguments, **limits)
    lines = done.stderr.strip().splitlines() or [""]
    text = lines[-1]
    expect(done.returncode == code, f"exits {done.returncode} instead of {code}: {text[:300]}")
    expect(text.startswith("plimsoll: error: "), f"the last line is no error: {text[:300]}")
    expect(all(line.startswith("plimsoll: ") for line in lines), f"strange lines: {done.stderr[:300]}")
    expect(sum("error:" in line for line in lines) == 1, f"more than one line of error: {done.stderr[:300]}")
    expect(not text.endswith("."), f"the error ends with a period: {text}")
    for each in texts:
        expect(each in text, f"no '{each}' in: {text}")


@functools.cache
def gpt_on_h200(options):
    with tempfile.TemporaryDirectory() as folder:
        return run("compile", QUICKSTART / "small_gpt.onnx", "--device", "h200", "-o", pathlib.Path(folder) / "p.plan",
                   *(word for option in options for word in option))


def compile_gpt(*words):
    """What the program says of the quickstart's model on an h200, with these options. What several tests ask for is compiled once."""
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    return gpt_on_h200(tuple(sorted(words[begin:end] for begin, end in zip(starts, [*starts[1:], len(words)]))))


def processor_seconds(call):
    """Of the programs that the call starts: what runs beside them does not count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def soon(seconds, call):
    """Programs that wait instead of working end by the timeout of run()."""
    took = processor_seconds(call)
    expect(took < seconds, f"takes {took:.0f} processor seconds")


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, struct format, values)."""
    header, body = {}, b""
    for name, (dtype, shape, form, values) in tensors.items():
        data = struct.pack(f"<{len(values)}{form}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)
    return path
    return path


X = ("F32", [4, 3], "f", [0.25 * i for i in range(12)])
LABELS = ("I64", [4], "q", [0, 1, 0, 1])


def compile_linear(folder):
    plan = folder / "linear.plan"
    succeed("compile", MODELS / "linear.onnx", "-o", plan, "--optimizer", "sgd", "--lr", "0.1")
    return plan


def run_linear(folder, plan, data, *options, weights=MODELS / "linear.onnx"):
    return ["run", plan, "--weights", weights, "--data", data, "--steps", "2", *options]


# Commands that succeed.

def test_check_ends_with_the_command_to_type_next(folder):
    text = succeed("check", MODELS / "no_loss.onnx")
    expect("the check took --loss cross-entropy:logits:labels" in text, text)
    expect("groups   1 matrix with 6 numbers\n" in text, text)
    expect("inputs   x f32[4,3]" in text and "outputs  logits f32[4,2]" in text and "samples/s" in text, text)
    words = next(line for line in text.splitlines() if line.startswith("next ")).split()[2:]
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    words[words.index("DATA")], words[words.index("1000")] = data, "1"
    words[words.index("runs")], words[words.index("trained.safetensors")] = folder / "runs", folder / "trained.safetensors"
    succeed(*words, "--device", "cpu")
    text = succeed("check", QUICKSTART / "small_gpt.onnx")
    expect("norms and biases with" in text and ", which decay leaves out" in text, text)
    expect("--weight-decay 0.01 --no-decay norms-and-biases --data DATA" in text, text)
    text = succeed("check", MODELS / "symbolic_batch.onnx")
    expect("the check took batch=8" in text and "--dim batch=8" in text, text)


def test_traces_for_perfetto_and_memory_viz(folder):
    plan, trace, snapshot, times = (folder / name for name in ("linear.plan", "trace.json", "memory.pickle", "times"))
    compile_linear(folder)
    report = json.loads(succeed("inspect", plan, "--json"))
    succeed("inspect", plan, "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    ops = [event for event in events if event["ph"] == "X" and event["cat"] != "function"]
    expect({event["name"] for event in ops} <= {each["op"] for each in report["instructions"]}, f"{ops}")
    expect(all(event["tid"] == 1 and event["dur"] > 0 for event in ops), "computing has one track")
    ends = max(event["ts"] + event["dur"] for event in ops)
    expect(abs(ends - report["time"]["predicted_step_us"]) < 1e-2 * ends, f"{ends} of {report['time']}")
    largest = max(sum(event["args"].values()) for event in events if event["ph"] == "C")
    expect(largest == report["memory"]["device"]["peak_live_bytes"], f"the counter reaches {largest}")

    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    shown = succeed(*run_linear(folder, plan, data, "--profile", times))
    expect("roofline %" in shown and "furthest above their roofline" in shown and "what limits it" in shown, shown)
    expect(any(limit in shown for limit in (" memory, at ", "launches: ", " matrix units, at ", " arithmetic, at ")), shown)
    succeed("inspect", plan, "--trace", trace, "--profile", times)
    measured = {json.loads(line)["us"] for line in times.read_text().splitlines()}
    shown = [event["dur"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X" and event["cat"] != "function"]
    expect(all(any(abs(us - each) < 1e-3 * us for each in measured) for us in shown), f"{shown}, {measured}")
    times.write_text("")
    refuse(MODEL, ["has no time of this plan's instructions"], "inspect", plan, "--trace", trace, "--profile", times)

    succeed("inspect", plan, "--memory-viz", snapshot)
    memory = pickle.loads(snapshot.read_bytes())
    segment, events = memory["segments"][0], memory["device_traces"][0]
    expect(segment["total_size"] == sum(block["size"] for block in segment["blocks"]) == report["memory"]["device"]["arena_bytes"], f"{segment}")
    live = {}
    for event in events:
        if event["action"] == "alloc":
            expect(event["addr"] not in live, f"{event} is allocated already")
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            expect(live.pop(event["addr"]) == event["size"], f"{event} was not allocated so")
        expect(sum(live.values()) <= report["memory"]["device"]["peak_live_bytes"], "more than the plan's peak")
    kept = {block["frames"][0]["filename"] for block in segment["blocks"] if block["state"] == "active_allocated"}
    persistent = {"%" + slot["name"] for slot in report["slots"] if slot.get("persistent")}
    expect(kept <= persistent and len(kept) == len(live) > 0, f"{kept} of {persistent}")


def test_train_compiles_and_runs_a_job(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    job, saved, runs = folder / "job.toml", folder / "after.safetensors", folder / "runs"
    job.write_text(f"""
model = "{MODELS / 'linear.onnx'}"
data = "{data}"
[plan]
optimizer = "sgd"
lr = 0.1
[saves]
save = ["{saved}"]
checkpoint = "{runs}"
resume = "auto"
""")
    before = sorted(folder.iterdir())
    text = succeed("train", job, "--dry-run", "--steps", "2")
    expect("1 step, loss" in text and "dry run: compiled, loaded, one step, a checkpoint, 1 save" in text, text)
    expect("the job has no evaluation" in text, text)
    expect(sorted(folder.iterdir()) == before, "a dry run leaves files behind")
    text = succeed("train", job, "--dry-run", "--steps", "2", "--evaluate-data", data)
    expect("evaluated 4 samples: loss" in text and "one step, an evaluation of one batch, a checkpoint, 1 save; what" in text, text)
    done = run("train", job, "--steps", "2")
    expect(done.returncode == DONE and "2 steps of 1 x 4 samples, predicted" in done.stderr and "until" in done.stderr, done.stderr)
    by_hand = folder / "by_hand.safetensors"
    succeed(*run_linear(folder, compile_linear(folder), data, "--save", by_hand))
    expect(saved.read_bytes() == by_hand.read_bytes(), "train gives what compile and run give")
    expect([each.name for each in runs.iterdir()] == ["step-000002"], "the last step is kept")


def test_a_job_saves_its_model_whatever_the_weights_are_from(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    onnx, weights = folder / "after.onnx", folder / "after.safetensors"
    job = ["train", "--model", MODELS / "linear.onnx", "--data", data, "--device", "cpu", "--steps", "2", "--save", onnx, "--save", weights]
    succeed(*job, "--init", "1")
    expect("can be trained" in succeed("check", onnx), "the saved model is no model")
    first = weights.rename(folder / "first.safetensors")
    succeed(*job, "--weights", first)
    refuse(USAGE, ["linear.onnx", "input"], *job, "--init", "1", "--save", MODELS / "linear.onnx")


def test_a_job_reads_several_token_files(folder):
    half = folder / "half.bin"
    half.write_bytes((QUICKSTART / "tokens.bin").read_bytes()[:100000])
    job = ["train", "--model", QUICKSTART / "small_gpt.onnx", "--dim", "batch=2", "--device", "cpu", "--steps", "1"]
    succeed(*job, "--data", f"{half}:2,{QUICKSTART / 'tokens.bin'}")
    refuse(MACHINE, ["--data", "nothing.bin: no such file"], *job, "--data", f"{half}:2,{folder / 'nothing.bin'}")
    refuse(USAGE, ["half.bin", "input"], *job, "--data", f"{half}:2,{QUICKSTART / 'tokens.bin'}", "--metrics", half)
    refuse(USAGE, ["a weight is above 0"], *job, "--data", f"{half}:-1,{QUICKSTART / 'tokens.bin'}")


def test_train_refuses_before_it_compiles(folder):
    job = folder / "job.toml"
    job.write_text(f'model = "{MODELS / "linear.onnx"}"\ndata = "nowhere.npz"\n')
    refuse(MACHINE, ["--data nowhere.npz: no such file"], "train", job)
    refuse(MACHINE, ["--model nowhere.onnx: no such file"], "train", job, "--model", "nowhere.onnx")
    job.write_text('model = "m.onnx"\n[optimizer]\nwarmpu = 3\n')
    refuse(USAGE, ["job.toml: no option is called warmpu; did you mean warmup?"], "train", job)


def test_compile_inspect_run(folder):
    plan = compile_linear(folder)
    report = json.loads(succeed("inspect", plan, "--json"))
    memory = report["memory"]["device"]
    expect(memory["promised_bytes"] >= memory["arena_bytes"] > 0, f"promised and arena bytes: {memory}")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    metrics = folder / "metrics.jsonl"
    text = succeed(*run_linear(folder, plan, data, "--metrics", metrics, "--save", folder / "after.safetensors"))
    found = re.search(r"^median step (\S+) (\S+), predicted (\S+) (\S+): ([\d.]+) times the prediction$", text, re.MULTILINE)
    expect(found, f"no measured step beside the predicted one: {text}")
    to_us = {"us": 1, "ms": 1e3, "s": 1e6}
    measured_us, predicted_us = (float(found[i].replace(",", "")) * to_us[found[i + 1]] for i in (1, 3))
    wanted_us = report["time"]["predicted_step_us"]
    expect(abs(predicted_us - wanted_us) <= 0.02 * wanted_us, f"predicted {predicted_us} us, the plan says {wanted_us}")
    ratio = measured_us / predicted_us
    expect(abs(float(found[5]) - ratio) <= 0.02 * ratio + 0.01, f"{found[5]} times, but {ratio:.3f}: {text}")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    expect(len(losses) == 2 and losses[1] < losses[0], f"the loss does not fall: {losses}")


def test_learning_rates_follow_their_schedule(folder):
    plan = compile_linear(folder)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    metrics = folder / "metrics.jsonl"
    run_six = [word if word != "2" else "6" for word in run_linear(folder, plan, data, "--metrics", metrics)]

    def rates(*options):
        succeed(*run_six, *options)
        return [round(json.loads(line)["learning_rate"], 6) for line in metrics.read_text().splitlines()]

    expect(rates() == [0.1] * 6, f"without options the rate is the plan's: {rates()}")
    warm = rates("--lr", "0.4", "--lr-schedule", "linear", "--warmup", "2", "--lr-end", "0.5x")
    expect(warm == [0, 0.2, 0.4, 0.35, 0.3, 0.25], f"a warm-up and a linear decay: {warm}")
    part = rates("--lr-schedule", "cosine", "--lr-steps", "4", "--lr-end", "0.02")
    expect(part[2:] == [0.06, 0.031716, 0.02, 0.02], f"a schedule that is shorter than the run: {part}")
    refuse(USAGE, ["cosin", "wsd, one-cycle"], *run_six, "--lr-schedule", "cosin")
    refuse(USAGE, ["--lr-end", "'fast'", "0.1x"], *run_six, "--lr-schedule", "cosine", "--lr-end", "fast")
    refuse(USAGE, ["6 updates", "take 9"], *run_six, "--lr-schedule", "wsd", "--warmup", "5", "--lr-decay", "4")


def test_optimizers_and_groups(folder):
    plan, model = folder / "grouped.plan", MODELS / "linear.onnx"
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    make = ["compile", model, "-o", plan]
    for name in ("sgd", "adam", "adamw", "adafactor", "lion", "rmsprop", "adagrad", "lamb", "muon"):
        succeed(*make, "--optimizer", name, "--weight-decay", "0.1", "--no-decay", "norms-and-biases", "--lr", "0.01")
        losses = [float(loss) for loss in re.search(r"loss (\S+) -> ([\d.]+)", succeed(*run_linear(folder, plan, data))).groups()]
        expect(losses[1] < losses[0], f"with {name} the loss goes from {losses[0]} to {losses[1]}")
    succeed("compile", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "-o", plan, "--optimizer", "muon", "--no-decay", "norms-and-biases")
    decisions = [each for each in json.loads(succeed("inspect", plan, "--json"))["decisions"] if each["pass"] == "groups"]
    choices = sorted(each["choice"] for each in decisions)
    expect(choices == ["adamw, 1 x the learning rate, weight decay 0", "adamw, 1 x the learning rate, weight decay 0.1",
                       "muon, 1 x the learning rate, weight decay 0.1"], f"groups: {decisions}")
    succeed(*make, "--optimizer", "sgd", "--lr", "0.1", "--ema", "0.5")
    trained, mean = folder / "trained.safetensors", folder / "mean.safetensors"
    succeed(*run_linear(folder, plan, data, "--save", trained, "--save-ema", mean))
    expect(trained.stat().st_size == mean.stat().st_size and trained.read_bytes() != mean.read_bytes(), "the mean is saved as the weights are")
    refuse(USAGE, ["--save-ema", "--ema"], *run_linear(folder, compile_linear(folder), data, "--save-ema", mean))
    refuse(USAGE, ["--momentum", "adamw has no momentum"], *make, "--momentum", "0.9")
    refuse(USAGE, ["'nothing'", "no trained parameter"], *make, "--group", "nothing:lr=0.1x")
    refuse(USAGE, ["REGEX:NAME=VALUE"], *make, "--group", "weight")
    refuse(USAGE, ["'rate=3'", "lr=0.1x"], *make, "--group", "weight:rate=3")
    refuse(USAGE, ["lamb", "adamw"], *make, "--optimizer", "lamb", "--weight-decay", "0")
    refuse(USAGE, ["8bit", "lion has none"], *make, "--optimizer", "lion", "--moments", "8bit")
    refuse(USAGE, ["--moments 4bit", "8bit"], *make, "--moments", "4bit")


def test_adapters_are_trained_saved_and_merged(folder):
    model, plan, adapter = QUICKSTART / "small_gpt.onnx", folder / "p.plan", folder / "adapter"
    job = ["compile", model, "--dim", "batch=1", "--device", "cpu", "-o", plan]
    refuse(USAGE, ["'mpl' matches none of the", "such as"], *job, "--lora-rank", "4", "--lora-targets", "mpl")
    refuse(USAGE, ["adapters are described and have no rank"], *job, "--lora-dropout", "0.1")
    refuse(USAGE, ["nf3 is none of as-trained, nf4"], *job, "--quantize", "nf3")
    refuse(MODEL, ["no frozen matrix"], *job, "--quantize", "nf4")
    succeed(*job, "--lora-rank", "4", "--quantize", "nf4", "--evaluate")
    text = succeed("inspect", plan)
    expect("adapters: rank 4" in text and "frozen weights: nf4" in text, "the report does not tell of adapters and codes")

    on = ["--weights", model, "--data", QUICKSTART / "tokens.bin"]
    refuse(USAGE, ["--save: ", "--save-adapter"], "run", plan, *on, "--save", folder / "w.safetensors")
    refuse(USAGE, ["--adapter-format lora: expected peft, diffusers or kohya"], "run", plan, *on, "--save-adapter", adapter,
           "--adapter-format", "lora")
    refuse(USAGE, ["PEFT's adapters are folders"], "run", plan, *on, "--save-adapter", folder / "a.safetensors")
    succeed("run", plan, *on, "--steps", "2", "--save-adapter", adapter)
    expect(sorted(file.name for file in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"], "other files")
    refuse(USAGE, ["has adapters; give those that were trained"], "evaluate", plan, *on)
    expect("loss" in succeed("evaluate", plan, *on, "--batches", "2", "--adapter", adapter), "no loss")
    merged = succeed("merge", model, "--adapter", adapter, "-o", folder / "merged.onnx")
    expect("adapters merged, the largest change is" in merged, merged)
    succeed(*job, "--lora-rank", "8")
    refuse(MODEL, ["has rank 4, the plan's have 8; compile with --lora-rank 4"], "run", plan, *on, "--adapter", adapter)
    succeed(*job, "--lora-rank", "4", "--lora-alpha", "8")
    refuse(MODEL, ["has the scale 1, the plan's have 2; compile with --lora-alpha 4"], "run", plan, *on, "--adapter", adapter)
    refuse(MACHINE, ["nowhere"], "run", plan, *on, "--adapter", folder / "nowhere")
    succeed(*job)
    refuse(USAGE, ["the plan has no adapters"], "run", plan, *on, "--save-adapter", adapter)


def test_losses_are_added_up(folder):
    def first_loss(*losses):
        plan = folder / "losses.plan"
        options = [word for loss in losses for word in ("--loss", loss)]
        succeed("compile", MODELS / "linear.onnx", "-o", plan, *options)
        data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
        text = succeed(*run_linear(folder, plan, data))
        return float(re.search(r"loss (\S+) ->", text).group(1))

    once = first_loss("loss")
    expect(abs(first_loss("loss", "0.5*loss") - 1.5 * once) < 2e-4, "two losses are not their sum")
    expect(abs(first_loss("loss + 2 * loss") - 3 * once) < 2e-4, "a sum of losses is not their sum")


def test_stop_after_prints_the_graph(folder):
    model = MODELS / "linear.onnx"
    forward = succeed("compile", model, "--stop-after", "fold-constants")
    expect("cross_entropy(" in forward and "adamw(" not in forward, f"not a forward graph: {forward}")
    program = folder / "program.ir"
    expect(succeed("compile", model, "--stop-after", "train", "--accumulate", "2", "-o", program) == "", "a result on stdout too")
    text = program.read_text()
    expect("graph @train_step(" in text and "graph @update(" in text, f"not the functions of a program: {text}")


def compile_batch(folder, *options):
    plan = folder / "batch.plan"
    succeed("compile", MODELS / "linear.onnx", "--device", "cpu", "-o", plan, *options)
    return json.loads(succeed("inspect", plan, "--json"))


def test_largest_batch_fills_the_budget(folder):
    needed = compile_batch(folder, "--batch", 96)["memory"]["device"]["promised_bytes"]
    largest = compile_batch(folder, "--max-batch", "--budget", needed)
    expect(largest["training"]["batch"] >= 96 and largest["memory"]["device"]["promised_bytes"] <= needed, f"{largest['training']}")
    refused = folder / "refused.plan"
    refuse(BUDGET, ["needs"], "compile", MODELS / "linear.onnx", "-o", refused, "--budget", needed, "--recompute", "off",
           "--batch", largest["training"]["batch"] + 1)
    refuse(BUDGET, ["one sample"], "compile", MODELS / "linear.onnx", "-o", refused, "--budget", 1, "--max-batch")


def test_largest_batch_with_host_memory_takes_few_tries(folder):
    plan = folder / "batch.plan"
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--device", "cpu", "--device-file", MODELS.parents[1] / "golden" / "cpu_with_host.json",
           "--budget", "108MiB", "--host-budget", "64MiB", "--split", "off", "-o", plan]
    done = run(*job, "--dim", "batch=1", "--max-batch")
    expect(done.returncode == 0, done.stderr)
    tries = done.stderr.count("lay out")
    report = json.loads(succeed("inspect", plan, "--json"))
    largest, on_host = report["training"]["batch"], report["memory"]["host"]["promised_bytes"]
    # The whole search refuses the batch that the short one found, and looks for the next below it.
    expect(largest > 8 and 0 < on_host <= 64 << 20 and tries <= 16, f"{largest} samples in {tries} tries, {on_host} bytes on the host")
    succeed(*job, "--dim", f"batch={largest}")
    refuse(BUDGET, ["needs"], *job, "--dim", f"batch={largest + 1}")


def test_global_batch_is_split(folder):
    training = compile_batch(folder, "--global-batch", 24)["training"]
    expect(training["batch"] * training["accumulate"] == 24, f"{training}")
    refuse(USAGE, ["global batch"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--global-batch", 4, "--batch", 2)


def fit_rows(*options):
    """Exit code, and the table of `fit` as device -> (budget, fits, needs) with sizes as printed."""
    done = run("fit", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", *options)
    heads, *rows = done.stdout.splitlines() or [""]
    expect(heads.split() == ["device", "budget", "fits", "needs", "step", "with"], f"{heads} {done.stderr[:300]}")
    return done.returncode, {words[0]: (" ".join(words[1:3]), words[3], " ".join(words[4:6])) for words in map(str.split, rows)}


def test_fit_answers_for_each_device(folder):
    code, rows = fit_rows("--device", "h200", "--device", "rtx4090")
    expect(code == DONE and list(rows) == ["h200", "rtx4090"], f"exits {code}: {rows}")
    expect(all(fits == "yes" for _, fits, _ in rows.values()), f"{rows}")
    everywhere = fit_rows()[1]
    expect({"cpu", "h200", "a6000"} <= set(everywhere) and everywhere["h200"] == rows["h200"], f"{everywhere}")


def test_fit_somewhere_is_enough_and_nowhere_is_refused(folder):
    # At batch 8 a step on the CPU takes some 100 MiB; a card's libraries alone hold more than 500 MiB.
    code, rows = fit_rows("--device", "cpu", "--device", "rtx4090", "--budget", "400MiB")
    expect(code == DONE and rows["cpu"][1] == "yes" and rows["rtx4090"][1] == "no", f"exits {code}: {rows}")
    code, enough = fit_rows("--device", "rtx4090", "--budget", rows["rtx4090"][2])
    expect(code == DONE and enough["rtx4090"][1] == "yes", f"the budget it names is not enough: {rows} {enough}")
    refuse(BUDGET, ["rtx4090: needs", "400 MiB", "would need less: "], "fit", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8",
           "--device", "rtx4090", "--budget", "400MiB")
    refuse(USAGE, ["no_such"], "fit", MODELS / "linear.onnx", "--device", "no_such")


def test_pareto_shows_what_smaller_budgets_cost(folder):
    plan = folder / "front.plan"
    model = [QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "--device", "h200", "-o", plan]
    heads, *rows = succeed("compile", *model, "--pareto").splitlines()[:-1]
    expect(heads.split() == ["budget", "peak", "step", "batch", "with"], heads)
    units = {"us": 1, "ms": 1e3, "MiB": 1, "GiB": 1024}
    cells = [row.split() for row in rows]
    peaks = [float(cell[2]) * units[cell[3]] for cell in cells]
    times = [float(cell[4]) * units[cell[5]] for cell in cells]
    expect(len(rows) >= 6 and rows[0].endswith("plain") and {cell[6] for cell in cells} == {"8"}, f"{rows}")
    expect(peaks == sorted(peaks, reverse=True) and times == sorted(times) and times[0] < times[-1], f"{rows}")
    budget = " ".join(cells[-1][:2])
    line = succeed("compile", *model, "--budget", budget)
    expect(f"needs {' '.join(cells[-1][2:4])} of {budget}" in line and f"predicted {' '.join(cells[-1][4:6])}" in line, f"{rows[-1]} {line}")
    done = run("compile", *model, "--pareto", "--budget", "1MiB")
    expect(done.returncode == BUDGET and done.stdout.splitlines()[1:] == rows, f"exits {done.returncode}: {done.stdout}")


def test_html_report_shows_the_plan_and_the_front(folder):
    page, plan = folder / "report.html", folder / "p.plan"
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "--device", "h200", "-o", plan, "--html", page]
    rows = succeed(*job, "--pareto").splitlines()[1:-1]
    text = page.read_text()
    expect("small_gpt.onnx on NVIDIA H200" in text and text.rstrip().endswith("</html>"), text[:300])
    expect(text.count("<circle class='point'") == len(rows) and text.count("<svg") == 2, "the chart lacks rows")
    succeed("inspect", plan, "--html", page)
    expect(page.read_text().count("<svg") == 1, "inspect draws a front it cannot know")
    plan.unlink()
    refuse(BUDGET, ["needs"], *job, "--budget", "100MiB")
    expect("the budget is 100 MiB" in page.read_text() and not plan.exists(), "no report of the refusal")


def test_precision_auto_takes_the_fastest(folder):
    plan = folder / "p.plan"
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "-o", plan]
    def chosen(device, *options):
        succeed(*job, "--device", device, "--precision", "auto", *options)
        report = json.loads(succeed("inspect", plan, "--json"))
        return report, [d["reason"] for d in report["decisions"] if d["pass"] == "precision"]
    report, reasons = chosen("h200")
    expect(report["training"]["precision"] == "bf16" and "tf32 takes" in reasons[0] and "; bf16 takes" in reasons[0], f"{reasons}")
    expect(chosen("cpu")[0]["training"]["precision"] == "fp32", "16 bits without units for them")
    report, reasons = chosen("h200", "--max-batch", "--recompute", "off", "--budget", "800MiB")
    expect(report["training"]["precision"] == "bf16" and report["training"]["batch"] > 8 and reasons, f"{reasons}")
    succeed("fit", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "--device", "h200", "--precision", "auto")
    refuse(BUDGET, ["needs"], *job, "--device", "h200", "--precision", "auto", "--budget", "568MiB")


def test_the_log_of_a_run_is_one_folder(folder):
    plan, log = compile_linear(folder), folder / "log"
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    refuse(MACHINE, ["has no log of a run"], "watch", folder)
    succeed(*run_linear(folder, plan, data, "--log", log))
    expect(sorted(each.name for each in log.iterdir()) == ["metrics.jsonl", "model.plan", "run.json"], f"{list(log.iterdir())}")
    facts = json.loads((log / "run.json").read_text())
    expect((facts["model"], facts["steps"], facts["items"]) == ("linear.onnx", 2, "samples"), f"{facts}")
    expect(succeed("inspect", log / "model.plan", "--text") == succeed("inspect", plan, "--text"), "the plan is the run's")
    locked = os.open(log, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)
    refuse(MACHINE, ["log: another run writes here"], *run_linear(folder, plan, data, "--log", log))
    os.close(locked)
    (log / "model.plan").write_bytes(b"no plan")
    refuse(MODEL, ["model.plan"], "watch", log)


def ask(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_watch_answers_this_machine_alone(folder):
    plan, log = compile_linear(folder), folder / "log"
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    succeed(*run_linear(folder, plan, data, "--log", log))
    with subprocess.Popen([PROGRAM, "watch", log], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watching:
        try:
            port = int(re.fullmatch(r"http://127.0.0.1:(\d+)/\n", watching.stdout.readline()).group(1))
            host = f"\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]  # keep nobody waiting
            page = ask(port, b"GET / HTTP/1.1" + host)
            expect(page.startswith(b"HTTP/1.1 200 ") and page.rstrip().endswith(b"</html>") and b"default-src 'none'" in page, page[:300])
            lines = (log / "metrics.jsonl").read_bytes()
            expect(ask(port, b"GET /metrics?from=10 HTTP/1.1" + host).endswith(b"\r\n\r\n" + lines[10:]), "records behind the tenth byte")
            for code, request in ((b"404", b"GET /run.json HTTP/1.1" + host), (b"404", b"GET /../run.json HTTP/1.1" + host),
                                  (b"404", b"GET /metrics?from=-1 HTTP/1.1" + host), (b"405", b"POST / HTTP/1.1" + host),
                                  (b"403", b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n"), (b"403", b"GET / HTTP/1.1\r\n\r\n")):
                answer = ask(port, request)
                expect(answer.startswith(b"HTTP/1.1 " + code), f"{request}: {answer[:40]}")
            try:
                answer = ask(port, b"GET /" + 100000 * b"x")
            except OSError:
                answer = b""
            expect(answer == b"", "a request without an end is not answered")
            expect(ask(port, b"GET / HTTP/1.1" + host) == page, "and harms nobody")
            for connection in silent:
                connection.close()
        finally:
            watching.kill()


def test_a_refusal_on_a_terminal_is_a_table(folder):
    """The terminal has 80 columns; the same words go into a log as one line."""
    job = [PROGRAM, "compile", str(QUICKSTART / "small_gpt.onnx"), "--dim", "batch=64", "--device", "h200", "-o", str(folder / "p.plan"),
           "--split", "off", "--budget", "618MiB"]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    started = subprocess.Popen(job, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 4096):
            text += part
    except OSError:  # the end of a terminal
        pass
    os.close(ours)
    expect(started.wait() == BUDGET, "the exit code does not depend on the terminal")
    lines = text.decode().split("plimsoll: error: ")[1].replace("\r", "").splitlines()
    expect(lines[0].startswith("needs ") and lines[0].endswith("the budget is 618 MiB"), lines[0])
    heads = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in ("ways out", "as asked", "alive at the peak")]
    expect(heads == sorted(heads) and all(len(line) <= 80 for line in lines[1:]), f"{lines}")
    line = compile_gpt("--dim", "batch=64", "--split", "off", "--budget", "618MiB").stderr.splitlines()[-1]
    options = [re.split(r" {2,}", way.strip())[0] for way in lines[heads[0] + 1:heads[1]] if way.startswith("  ")]
    expect(len(options) > 2 and all(option in line for option in options), f"{options} and {line}")


def test_refusals_name_changes_of_the_job_that_do_what_they_say(folder):
    def fits(*options):
        done = compile_gpt(*options)
        expect(done.returncode == DONE, f"{options}: {done.stderr.strip()[-300:]}")

    done = compile_gpt("--dim", "batch=64", "--split", "off", "--budget", "618MiB")
    text = done.stderr.splitlines()[-1]
    expect(done.returncode == BUDGET and "would fit: " in text and " per sample)" in text, text)
    enough = re.search(r": needs ([\d.]+ \w+) \(", text).group(1)
    fits("--dim", "batch=64", "--split", "off", "--budget", enough)
    alternatives = re.findall(r"(--dim batch=32|--precision bf16|--split auto)(?: \(\d+ chunks from \w+\))? ([\d.]+ \w+) \(", text)
    for alternative, needs in alternatives:
        fits(*([] if "--dim" in alternative else ["--dim", "batch=64"]), *([] if "--split" in alternative else ["--split", "off"]), *alternative.split(), "--budget", needs)
    less = text.split("would need less: ")[1]
    expect({way for way, _ in alternatives} >= {"--dim batch=32", "--split auto"} and any(way in less for way in ("--optimizer sgd", "--moments 8bit", "--lora-rank 8")), text)
    # An update of as many samples needs less in smaller micro-batches, which is true when it is typed.
    way, least = re.search(r"needs least with (--dim batch=1 --accumulate 64), ([\d.]+ \w+);", text).groups()
    fits(*way.split(), "--split", "off", "--budget", least)
    fits(*re.search(r"would fit: .*?(--dim batch=32 --accumulate 2) ", text).group(1).split(), "--split", "off", "--budget", "618MiB")


def write_blocks(path, width, rows):
    """Writes a model of twelve blocks, a product and a square each."""
    names = [f"m.layer_{i}.mlp.3.weight" for i in range(12)]
    weights = [onnx.tensor(name, [width, width], [0.01] * width ** 2) for name in names]
    nodes = []
    for i, name in enumerate(names):
        nodes.append(onnx.node("MatMul", f"v{i} {name}", f"p{i}"))
        nodes.append(onnx.node("Mul", f"p{i} p{i}", f"v{i + 1}"))
    nodes.append(onnx.node("SoftmaxCrossEntropyLoss", "v12 labels", "loss"))
    inputs = [onnx.value("v0", onnx.FLOAT, rows, width), onnx.value("labels", onnx.INT64, rows)]
    path.write_bytes(onnx.model(nodes, inputs, [onnx.value("loss", onnx.FLOAT)], weights, (), 20))
    return path


def test_ways_out_are_accepted_when_typed(folder):
    """Each way that was planned fits into the bytes it names. What only needs about so much is an estimate."""
    blocks = write_blocks(folder / "blocks.onnx", 64, 4096)
    compile_blocks = functools.partial(run, "compile", blocks, "--device", "rtx4090", "-o", folder / "p.plan")
    jobs = [(compile_gpt, [], ["--dim", "batch=64"], "588MiB"),
            (compile_gpt, ["--split", "off"], ["--dim", "batch=64"], "618MiB"),
            (compile_blocks, ["--precision", "fp16"], [], "580MiB")]
    for compile_with, job, batch, budget in jobs:
        text = compile_with(*job, *batch, "--budget", budget).stderr.splitlines()[-1]
        ways = re.findall(r"(--(?:'[^']*'|[^',(])+?)\)? (?:\(\d+ chunks from \S+\) )?([\d.]+ \w+) \(", text)
        expect(len(ways) > 3, text)
        for way, needs in ways:
            options = shlex.split(way)
            kept = [] if options[0] == "--split" else job
            done = compile_with(*kept, *([] if options[0] in ("--dim", "--batch") else batch), *options, "--budget", needs)
            expect(done.returncode == DONE, f"{way} {needs}: {done.stderr.strip()[-300:]}")


def test_refusals_find_the_last_blocks_in_names_with_several_numbers(folder):
    path = write_blocks(folder / "blocks.onnx", 256, 4)
    refuse(BUDGET, [r"--train '^m\.layer_(9|10|11)\.'"], "compile", path, "-o", folder / "p.plan", "--device", "cpu", "--budget", "1KiB")


SMALL_CARD = {"name": "small_card", "title": "a card", "backend": "cuda", "compute_capability": 90, "multiprocessors": 100, "memory_bytes": 1 << 30, "reserves": [], "matmul_tflops": {"f32": 10},
              "vector_tflops": 1, "memory_gb_per_s": 1000, "launch_us": 5, "to_host_gb_per_s": 20, "from_host_gb_per_s": 20,
              "product_workspace_bytes": 1024, "convolution_workspace_bytes": 1024, "collective_reserve_bytes": 1, "collective_graph_bytes": 1, "graph_launch_bytes": 1}


def on_one_core(do):
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        return do()
    finally:
        os.sched_setaffinity(0, every)


def test_refusals_do_not_depend_on_the_number_of_cores(folder):
    """Programs and kinds of plans are searched for the least that they need beside each other."""
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "--device", "h200", "--budget", "1MiB", "-o", folder / "p.plan"]
    refused = lambda: run(*job).stderr.splitlines()[-1]
    several, one = refused(), on_one_core(refused)
    expect("would need less" in one and one == several, f"one core: {one}; all of them: {several}")


def test_plans_do_not_depend_on_the_number_of_cores(folder):
    """Meshes are compiled and searched beside each other where there are cores; one core finds the same plan to the byte."""
    card = {**SMALL_CARD, "link_gb_per_s": 20, "arena_reserve_bytes": 1, "transfer_reserve_bytes": 1}
    (folder / "card.json").write_text(json.dumps({"devices": [card]}))
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--device-file", folder / "card.json", "--device", "small_card", "--dim", "batch=8", "--gpus", "4", "--budget", "14MiB"]
    succeed(*job, "-o", folder / "all.plan")
    on_one_core(lambda: succeed(*job, "-o", folder / "one.plan"))
    expect(json.loads(succeed("inspect", folder / "one.plan", "--json"))["mesh"] == "data=4", "several cards share the job")
    expect((folder / "one.plan").read_bytes() == (folder / "all.plan").read_bytes(), "one core and all of them make the same plan")


def test_refusals_name_cards_that_are_enough(folder):
    card = dict(SMALL_CARD)
    (folder / "card.json").write_text(json.dumps({"devices": [card]}))
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--device-file", folder / "card.json", "--device", "small_card", "--offload", "off", "-o", folder / "p.plan"]
    # Parameters and moments are 14.4 MiB; half of the moments are freed.
    text = run(*job, "--dim", "batch=1", "--budget", "15MiB").stderr.splitlines()[-1]
    found = re.search(r"would fit: .*?--mesh (data=\d) --zero (\d) --dim (batch=\d) ([\d.]+ \w+) \(", text)
    expect(found, text)
    mesh, zero, batch, needs = found.groups()
    expect(mesh[4:] == batch[5:], text)
    row = succeed(*job, "--dim", batch, "--mesh", mesh, "--zero", zero, "--budget", needs)
    expect(f"of {needs} on small_card" in row, row)
    # Small states, adapters and a quantised base are enough too.
    for way in ("--moments 8bit", "--lora-rank 8", "--lora-rank 8 --quantize nf4"):
        needs = re.search(f"would fit: .*?[:,] {way} ([\\d.]+ \\w+) \\(", text)
        expect(needs, f"{way} in {text}")
        succeed(*job, "--dim", "batch=1", *way.split(), "--budget", needs.group(1))
    text = run(*job, "--dim", "batch=1", "--budget", "5MiB", "--lora-rank", "8").stderr.splitlines()[-1]
    expect(" --quantize nf4 " in text and "--lora-rank" not in text and "--moments" in text, text)
    # A device that multiplies 8-bit floats faster has a base in them too.
    card["matmul_tflops"] = {"f32": 10, "bf16": 100, "f8e4m3": 200, "f8e5m2": 200}
    (folder / "card.json").write_text(json.dumps({"devices": [card]}))
    text = run(*job, "--dim", "batch=1", "--budget", "9MiB", "--precision", "bf16").stderr.splitlines()[-1]
    found = re.search(r"[:,] --lora-rank 8 --quantize fp8 --precision fp8 ([\d.]+ \w+) \(", text)
    expect(found, text)
    succeed(*job, "--dim", "batch=1", "--lora-rank", "8", "--quantize", "fp8", "--precision", "fp8", "--budget", found.group(1))
    # Muon reads whole matrices, so more cards hold no less each.
    text = run(*job, "--dim", "batch=1", "--budget", "10MiB", "--optimizer", "muon").stderr.splitlines()[-1]
    expect("needs" in text and "--mesh" not in text and "cards" not in text, text)


def test_refusals_say_how_much_host_memory_would_do(folder):
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--dim", "batch=8", "--device", "cpu", "--device-file", MODELS.parents[1] / "golden" / "cpu_with_host.json",
           "--budget", "114MiB", "--recompute", "off", "--split", "off", "-o", folder / "p.plan"]
    for asked, named in ((["--offload", "off"], r"--offload auto --host-budget ([\d.]+\w+)"), (["--host-budget", "4MiB"], r"and 4 MiB of host memory; .* --host-budget ([\d.]+\w+)")):
        text = run(*job, *asked).stderr.splitlines()[-1]
        enough = re.search(named, text)
        expect(enough, text)
        succeed(*job, "--host-budget", enough.group(1))


def test_split_names_chunks_and_where_they_begin(folder):
    compiling = ["compile", MODELS / "linear.onnx", "-o", folder / "p.plan"]
    refuse(USAGE, ["--split some", "off"], *compiling, "--split", "some")
    refuse(USAGE, ["no value of the model allows 3 equal chunks"], *compiling, "--split", "3")  # of a batch of 4
    refuse(USAGE, ["'nothing'"], *compiling, "--split", "2:nothing")
    succeed(*compiling, "--split", "2:x")
    decisions = json.loads(succeed("inspect", folder / "p.plan", "--json"))["decisions"]
    split = [(d["subject"], d["choice"]) for d in decisions if d["pass"] == "split-batch"]
    expect(split == [("x", "2 chunks")], f"decides {split}")


def test_batch_is_split_where_that_is_faster(folder):
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--dim", "batch=64", "--device", "h200", "--budget", "618MiB", "-o", folder / "p.plan"]
    row = succeed(*job).splitlines()[-1]
    expect(re.search(r", with \d+ chunks from \w+", row), row)
    whole = compile_gpt("--dim", "batch=64", "--split", "off", "--budget", "618MiB")
    expect(whole.returncode == BUDGET and "error: needs " in whole.stderr, whole.stderr)
    expect("chunks from" not in succeed(*job, "--max-batch").splitlines()[-1], "the largest batch is split")


def test_fit_and_front_name_splits(folder):
    job = [QUICKSTART / "small_gpt.onnx", "--dim", "batch=64", "--device", "h200", "--recompute", "off", "--offload", "off"]
    row = run("fit", *job, "--budget", "608MiB").stdout.splitlines()[-1]
    expect(re.search(r"\b\d+ chunks from \w+", row), row)
    rows = succeed("compile", *job, "--pareto", "-o", folder / "p.plan").splitlines()[1:-1]
    expect("chunks from" not in rows[0] and any("chunks from" in row for row in rows), "\n".join(rows))


def test_recompute_and_offload_are_auto_or_off(folder):
    refuse(USAGE, ["--recompute"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--recompute", "some")
    refuse(USAGE, ["--offload"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--offload", "some")


def test_saved_weights_train_on(folder):
    plan = compile_linear(folder)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    saved = [folder / "after.safetensors", folder / "after.onnx"]
    succeed(*run_linear(folder, plan, data, "--save", saved[0], "--save", saved[1]))
    losses = []
    for weights in [MODELS / "linear.onnx", *saved]:
        metrics = folder / "metrics.jsonl"
        succeed(*run_linear(folder, plan, data, "--metrics", metrics, weights=weights))
        losses.append(json.loads(metrics.read_text().splitlines()[0])["loss"])
    expect(losses[0] > losses[1] == losses[2], f"first losses with the model's weights and with saved ones: {losses}")


def compile_predictions(folder, *options):
    """A model that ends in its predictions, with a loss of its own."""
    plan = folder / "predictions.plan"
    succeed("compile", MODELS / "no_loss.onnx", "-o", plan, "--loss", "cross-entropy:logits:labels", "--optimizer", "sgd", *options)
    return plan


def read_safetensors(path):
    """name -> (dtype, shape)."""
    data = path.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def test_evaluates_while_training_and_alone(folder):
    plan = compile_predictions(folder, "--evaluate-batch", "4", "--metric", "accuracy", "--metric", "perplexity")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    trained, metrics = folder / "trained.safetensors", folder / "metrics.jsonl"
    text = succeed("run", plan, "--weights", MODELS / "no_loss.onnx", "--data", data, "--steps", "5", "--lr", "0.5", "--evaluate-data", data,
                   "--evaluate-every", "2", "--evaluate-batches", "1", "--metrics", metrics, "--save", trained)
    expect("evaluated 4 samples: loss" in text, f"no evaluation at the end: {text}")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line["step"] for line in lines if "evaluation" in line]
    expect(steps == [2, 4, 5], f"evaluated after steps {steps}")
    last = lines[-1]["evaluation"]
    expect(last["samples"] == 4 and set(last) == {"loss", "accuracy", "perplexity", "samples", "seconds", "best"}, f"{last}")
    alone = folder / "alone.json"
    succeed("evaluate", plan, "--weights", trained, "--data", data, "--batches", "1", "--metrics", alone)
    expect(json.loads(alone.read_text())["loss"] == last["loss"], f"{alone.read_text()} after {last}")
    # Predictions need no labels.
    unlabelled = write_safetensors(folder / "x.safetensors", {"x": X})
    succeed("predict", plan, "--weights", trained, "--data", unlabelled, "--batches", "1", "-o", folder / "p.safetensors")
    expect(read_safetensors(folder / "p.safetensors") == {"logits": ("F32", [4, 2])}, f"{read_safetensors(folder / 'p.safetensors')}")


def numbers_of(path, name):
    """The numbers of an f32 tensor in a .safetensors file."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    first, end = json.loads(content[8:8 + size])[name]["data_offsets"]
    return struct.unpack(f"<{(end - first) // 4}f", content[8 + size + first:8 + size + end])


def cross_entropy_of(weight):
    """Mean over the batch of the model x @ weight[3, 2] with LABELS, in double."""
    losses = []
    for row, label in enumerate(LABELS[3]):
        logits = [sum(X[3][3 * row + k] * weight[2 * k + c] for k in range(3)) for c in range(2)]
        losses.append(math.log(sum(math.exp(logit) for logit in logits)) - logits[label])
    return sum(losses) / len(losses)


def test_evaluates_the_mean_of_the_weights(folder):
    plan = compile_predictions(folder, "--lr", "0.5", "--ema", "0.9", "--evaluate")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    last, mean, metrics = folder / "last.safetensors", folder / "mean.safetensors", folder / "m.json"
    succeed("run", plan, "--weights", MODELS / "no_loss.onnx", "--data", data, "--in-order", "--steps", "5", "--save", last, "--save-ema", mean)
    losses = []
    for weights in (last, mean):
        succeed("evaluate", plan, "--weights", weights, "--data", data, "--batches", "1", "--metrics", metrics)
        losses.append(json.loads(metrics.read_text())["loss"])
        expect(abs(losses[-1] - cross_entropy_of(numbers_of(weights, "weight"))) < 1e-5, f"loss {losses[-1]} of {weights.name}")
    expect(abs(losses[0] - losses[1]) > 1e-3, f"the mean is as good as the last: {losses}")


def test_evaluates_the_mean_of_the_weights_during_a_run(folder):
    plan = compile_predictions(folder, "--lr", "0.5", "--ema", "0.9", "--evaluate")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    mean, metrics = folder / "mean.safetensors", folder / "m.jsonl"
    done = run("run", plan, "--weights", MODELS / "no_loss.onnx", "--data", data, "--in-order", "--steps", "5", "--save-ema", mean,
               "--evaluate-data", data, "--metrics", metrics)
    expect(done.returncode == DONE and "evaluations are of the running mean of the weights" in done.stderr, done.stderr)
    evaluated = [json.loads(line)["evaluation"]["loss"] for line in metrics.read_text().splitlines() if "evaluation" in line]
    expect(len(evaluated) == 1 and abs(evaluated[0] - cross_entropy_of(numbers_of(mean, "weight"))) < 1e-5, f"loss {evaluated}")


def test_stops_early_without_progress(folder):
    plan = compile_predictions(folder, "--metric", "accuracy")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    text = succeed("run", plan, "--weights", MODELS / "no_loss.onnx", "--data", data, "--steps", "50", "--lr", "0", "--evaluate-data", data,
                   "--evaluate-every", "3", "--evaluate-batches", "1", "--early-stop", "2")
    expect("9 steps" in text and "at step 3" in text, f"a learning rate of 0 improves nothing: {text}")


def test_evaluation_is_refused_where_it_would_do_nothing(folder):
    plan = compile_predictions(folder)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    with_data = ["run", plan, "--weights", MODELS / "no_loss.onnx", "--data", data]
    refuse(USAGE, ["compile it with --evaluate"], *with_data, "--evaluate-data", data)
    refuse(USAGE, ["--evaluate-data"], *with_data, "--evaluate-every", "2")
    refuse(USAGE, ["--evaluate-every"], *with_data, "--evaluate-data", data, "--early-stop", "2")
    refuse(USAGE, ["compile it with --evaluate"], "evaluate", plan, "--weights", MODELS / "no_loss.onnx", "--data", data)
    refuse(USAGE, ["there is no metric 'acuracy'"], "compile", MODELS / "no_loss.onnx", "-o", plan, "--loss", "cross-entropy:logits:labels",
           "--metric", "acuracy")


def test_verify_knows_the_job_from_the_plan(folder):
    plan = compile_predictions(folder, "--momentum", "0.9", "--weight-decay", "0.5", "--group", "weight:lr=0.1x", "--no-decay", "^weight$",
                               "--clip-grad-value", "0.3")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    verified = succeed("verify", plan, "--weights", MODELS / "no_loss.onnx", "--data", data)
    expect("tensors agree with the reference" in verified and "differs" not in verified, verified)
    refuse(USAGE, ["give the plan's .onnx file"], "verify", plan, "--weights", data, "--data", data)


def test_same_input_same_plan(folder):
    first = compile_linear(folder).read_bytes()
    (folder / "linear.plan").unlink()
    expect(compile_linear(folder).read_bytes() == first, "two compilations differ")


def test_precision_file(folder):
    rules, plan, metrics = folder / "rules.txt", folder / "p.plan", folder / "metrics.jsonl"
    data = write_safetensors(folder / "data.safetensors", {"x": X, "labels": LABELS})
    rules.write_text("# the only product\nop:linear = fp32\n")
    linear = MODELS / "linear.onnx"
    succeed("compile", linear, "-o", plan, "--precision", "fp16", "--precision-file", rules)
    expect("rule: op:linear = fp32" in succeed("inspect", plan), "inspect does not name the rule")
    succeed("compile", linear, "-o", plan, "--precision", "fp16")
    succeed("run", plan, "--weights", linear, "--data", data, "--steps", "1", "--metrics", metrics)
    line = json.loads(metrics.read_text().splitlines()[0])
    expect(line["loss_scale"] == 65536 and line["skipped_steps"] == 0, f"metrics: {line}")
    refuse(USAGE, ["--precision-file needs --precision bf16, fp16 or fp8, not exported"],
           "compile", linear, "-o", plan, "--precision-file", rules)
    rules.write_text("linear = fp32\n")
    refuse(USAGE, ["'linear = fp32'", "expected op:NAME"],
           "compile", linear, "-o", plan, "--precision", "bf16", "--precision-file", rules)
    refuse(MACHINE, ["no_file", "No such file"],
           "compile", linear, "-o", plan, "--precision", "bf16", "--precision-file", folder / "no_file")


def test_precision_fp8(folder):
    small, plan, rules = QUICKSTART / "small_gpt.onnx", folder / "p.plan", folder / "rules.txt"
    succeed("compile", small, "-o", plan, "--precision", "fp8", "--dim", "batch=2")
    report = succeed("inspect", plan)
    for line in ("precision fp8", "f8e4m3 x f8e4m3", "f8e5m2 x f8e4m3", "no layer follows"):
        expect(line in report, f"inspect does not say '{line}'")
    succeed("run", plan, "--weights", small, "--data", QUICKSTART / "tokens.bin", "--steps", "2")
    rules.write_text("op:linear = bf16\nop:matmul = bf16\n")
    refuse(MODEL, ["precision fp8: no hidden layer is linear"],
           "compile", small, "-o", plan, "--precision", "fp8", "--dim", "batch=2", "--precision-file", rules)
    rules.write_text("op:linear = fp8\n")
    refuse(USAGE, ["'op:linear = fp8': 8 bits need precision fp8, not bf16"],
           "compile", small, "-o", plan, "--precision", "bf16", "--dim", "batch=2", "--precision-file", rules)
    refuse(USAGE, ["precision fp8: matrix units of a100 take no f8e4m3"],
           "compile", small, "-o", plan, "--precision", "fp8", "--dim", "batch=2", "--device", "a100")
    job = folder / "job.toml"
    job.write_text('precision = "fp8"\n')
    succeed("compile", "--config", job, small, "-o", plan, "--dim", "batch=2", "--device", "h200")
    expect("precision fp8" in succeed("inspect", plan), "a job's precision")


def test_help_names_every_command(folder):
    text = succeed("--help")
    for command in ("compile", "fit", "inspect", "run", "evaluate", "predict", "verify", "check", "devices"):
        expect(command in text, f"--help does not name {command}")


def test_symbolic_batch_is_bound(folder):
    succeed("compile", MODELS / "symbolic_batch.onnx", "-o", folder / "p.plan", "--dim", "batch=4")


# Usage.

def test_stop_after_needs_a_pass_that_runs(folder):
    model = MODELS / "linear.onnx"
    refuse(USAGE, ["did you mean simplify?"], "compile", model, "--stop-after", "simplfy")
    refuse(USAGE, ["simplify", "is not run"], "compile", model, "--stop-after", "simplify", "--skip", "simplify")
    refuse(USAGE, ["--skip", "did you mean 'simplify'?"], "compile", model, "--skip", "simplfy", "-o", folder / "skipped.plan")
    refuse(USAGE, ["--output"], "compile", model)


def test_unknown_command(folder):
    refuse(USAGE, ["compile"], "complie", MODELS / "linear.onnx")


def test_unknown_option_names_the_nearest(folder):
    refuse(USAGE, ["--optimiser", "--optimizer"],
           "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--optimiser", "sgd")


def test_unknown_optimizer(folder):
    refuse(USAGE, ["admw", "adamw"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--optimizer", "admw")


def test_unknown_layout(folder):
    refuse(USAGE, ["nhwc", "channels-last"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--layout", "nhwc")


def test_unknown_device(folder):
    refuse(USAGE, ["h2000", "h200"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--device", "h2000")


def test_bad_size(folder):
    refuse(USAGE, ["12XB"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--budget", "12XB")


def test_bad_dimension(folder):
    refuse(USAGE, ["batch"], "compile", MODELS / "symbolic_batch.onnx", "-o", folder / "p.plan", "--dim", "batch=some")


# Models that cannot be trained as asked.

def refuse_model(folder, name, *texts):
    plan = folder / "p.plan"
    refuse(MODEL, texts, "compile", MODELS / f"{name}.onnx", "-o", plan)
    expect(not plan.exists(), "a plan was written")


def test_truncated_model(folder):
    refuse_model(folder, "truncated", "truncated.onnx")


def test_not_a_model(folder):
    garbage = folder / "garbage.onnx"
    garbage.write_bytes(bytes(range(256)) * 4)
    refuse(MODEL, ["garbage.onnx"], "compile", garbage, "-o", folder / "p.plan")


def test_empty_model(folder):
    empty = folder / "empty.onnx"
    empty.touch()
    refuse(MODEL, ["empty.onnx"], "compile", empty, "-o", folder / "p.plan")


def test_cycle(folder):
    refuse_model(folder, "cycle", "/a/Add")


def test_inner_sizes_differ(folder):
    refuse_model(folder, "inner_sizes", "/head/MatMul", "3", "5")


def test_mixed_dtypes(folder):
    refuse_model(folder, "mixed_dtypes", "/mixed/Add")


def test_undefined_value(folder):
    refuse_model(folder, "undefined_value", "nowhere")


def test_value_defined_twice(folder):
    refuse_model(folder, "defined_twice", "logits")


def test_unbound_dimension(folder):
    refuse_model(folder, "symbolic_batch", "batch", "--dim")


def test_unsupported_operator(folder):
    refuse_model(folder, "unsupported_operator", "Det", "/odd/Det")


def test_not_differentiable(folder):
    refuse_model(folder, "not_differentiable", "/odd/ArgMax")


def test_no_loss(folder):
    refuse_model(folder, "no_loss", "cross-entropy:LOGITS:LABELS")


def test_check_lists_obstacles(folder):
    done = run("check", MODELS / "unsupported_operator.onnx")
    expect(done.returncode == MODEL, f"check exits {done.returncode}")
    expect("Det" in done.stdout + done.stderr, "check does not name the operator")


# Threads.

def test_threads_spin_briefly(folder):
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_DISPLAY_ENV": "verbose"}).stderr
    expect("GOMP_SPINCOUNT = '1000'" in said, f"the threads of OpenMP spin as long as they like: {said}")
    own = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=300,
                         env={**os.environ, "OMP_DISPLAY_ENV": "verbose", "GOMP_SPINCOUNT": "77"}).stderr
    expect("GOMP_SPINCOUNT = '77'" in own and "'1000'" not in own, f"the environment does not decide: {own}")


# Data sets.

def test_epochs_and_hold_out(folder):
    plan = compile_linear(folder)
    samples = 43
    data = write_safetensors(folder / "many.safetensors",
                             {"x": ("F32", [samples, 3], "f", [0.1 * (i % 7) for i in range(3 * samples)]),
                              "labels": ("I64", [samples], "q", [i % 2 for i in range(samples)])})
    words = ["run", plan, "--weights", MODELS / "linear.onnx", "--data", data]
    text = succeed(*words, "--epochs", "3", "--hold-out", "0.1")  # 39 samples are 9 batches of 4
    expect("27 steps, " in text, f"3 epochs of 39 samples: {text}")
    refuse(USAGE, ["excludes"], *words, "--epochs", "3", "--steps", "3")
    refuse(USAGE, ["drop or pad"], *words, "--last-batch", "half")
    refuse(USAGE, ["--hold-out"], *words, "--hold-out", "1")
    transforms = folder / "transforms.toml"
    for text, wanted in [("flip = 0.5\n", ["no images"]), ("[transforms]\nflop = 1\n", ["flop", "did you mean flip"]),
                         ("flip = 2\n", ["flip cannot be 2"]), ("mean = [0.5, 0.5]\n", ["mean cannot be 0.5, 0.5"]),
                         ("mean = 0.5\nstd = [0.25]\n", ["no images"])]:
        transforms.write_text(text)
        refuse(USAGE, wanted, *words, "--transforms", transforms)


def test_data_is_described(folder):
    plan = compile_linear(folder)
    samples = 10
    data = write_safetensors(folder / "ten.safetensors",
                             {"x": ("F32", [samples, 3], "f", [i for i in range(3 * samples)]),
                              "labels": ("I64", [samples], "q", [i % 2 for i in range(samples)])})
    text = succeed("data", data)
    for wanted in ["tensors: 10 samples", "x       f32[3] per sample: 0 to 29, mean 14.5", "labels  i64[] per sample: 0 to 1"]:
        expect(wanted in text, f"no '{wanted}' in: {text}")
    text = succeed("data", data, "--plan", plan, "--in-order")
    for wanted in ["an epoch has 2 batches of 4 samples, 2 steps", "x f32[4,3]: 0 to 11, mean 5.5"]:
        expect(wanted in text, f"no '{wanted}' in: {text}")
    refuse(MODEL, ["one batch needs 4"], "data", data, "--plan", plan, "--hold-out", "0.8")
    refuse(MACHINE, ["no such file"], "data", folder / "nothing")
    tokens = folder / "tokens.bin"
    tokens.write_bytes(struct.pack("<5H", 1, 2, 300, 4, 5))
    expect("token numbers of 16 bits: 5, the largest is 300" in succeed("data", tokens), "tokens are not described")
    text = succeed("data", f"{tokens},{QUICKSTART / 'tokens.bin'}:2")
    for wanted in ["2 token files", "tokens.bin: token numbers of 16 bits: 5, the largest is 300\n", "; an epoch reads each window 2.00 times"]:
        expect(wanted in text, f"no '{wanted}' in: {text}")
    refuse(MACHINE, ["nothing.bin: no such file"], "data", f"{tokens},{folder / 'nothing.bin'}")


# Weights and data that do not match.

def test_lengths_share_weights_and_bytes(folder):
    """Twelve samples of lengths 1, 2, 3 and 7, in order: batches of length 2, 4 and 8, which train as batches of 8 do."""
    lengths = [2, 1, 2, 2, 3, 4, 3, 3, 7, 8, 7, 5]
    ids = [(3 * i) % 7 for i in range(sum(lengths))]
    data = write_safetensors(folder / "ragged.safetensors", {"ids": ("I64", [len(ids)], "q", ids), "labels": ("I64", [len(ids)], "q", [i % 2 for i in ids]),
                                                            "lengths": ("I64", [len(lengths)], "q", lengths)})
    metrics, saved, promised = {}, {}, {}
    compiling = ["compile", MODELS / "tokens.onnx", "--device", "cpu", "--lr", "0.1", "--optimizer", "sgd", "--momentum", "0.9"]
    for name, options in (("several", ["--lengths", "seq=4,2,8"]), ("one", ["--dim", "seq=8"])):
        plan, metrics[name], saved[name] = folder / f"{name}.plan", folder / f"{name}.jsonl", folder / f"{name}.safetensors"
        succeed(*compiling, "-o", plan, *options)
        text = succeed("run", plan, "--weights", MODELS / "tokens.onnx", "--data", data, "--in-order", "--epochs", "2", "--metrics", metrics[name],
                       "--save", saved[name], "--poison")
        expect("6 steps" in text and "tokens/s" in text, text)
        promised[name] = json.loads(succeed("inspect", plan, "--json"))["memory"]["device"]["promised_bytes"]
    text = succeed("data", data, "--plan", folder / "several.plan", "--in-order")
    expect("ids i64[4,2]:" in text, f"the first batch is one of the shortest length: {text}")
    losses = {name: [json.loads(line)["loss"] for line in path.read_text().splitlines()] for name, path in metrics.items()}
    expect(all(abs(a - b) < 1e-6 for a, b in zip(losses["several"], losses["one"])), f"{losses}")
    for weight in ("table", "weight"):
        pairs = zip(numbers_of(saved["several"], weight), numbers_of(saved["one"], weight))
        expect(all(abs(a - b) < 1e-6 for a, b in pairs), f"{weight} differs")
    expect(promised["several"] <= promised["one"] + 1024, f"promised {promised}")
    text = succeed("inspect", folder / "several.plan", "--json")
    expect("train_step.2" in text and "train_step.4" in text, "no shorter steps in the report")
    # The order of an epoch is drawn: each sample once, resumed anywhere.
    words = ["run", folder / "several.plan", "--weights", MODELS / "tokens.onnx", "--data", data, "--epochs", "4"]
    whole, again = folder / "whole.safetensors", folder / "again.safetensors"
    succeed(*words, "--save", whole)
    stopped = words[:-2] + ["--steps", "5", "--checkpoint", folder / "runs"]
    succeed(*stopped)
    succeed(*words, "--checkpoint", folder / "runs", "--resume", "auto", "--save", again)
    expect(whole.read_bytes() == again.read_bytes(), "a resumed run goes on with other batches")
    refuse(USAGE, ["such as sequence=128,256,512"], *compiling, "-o", plan, "--lengths", "seq=a")
    refuse(USAGE, ["--dim binds seq too"], *compiling, "-o", plan, "--lengths", "seq=2,4", "--dim", "seq=4")
    even = write_safetensors(folder / "even.safetensors", {"ids": ("I64", [4, 8], "q", [1] * 32), "labels": ("I64", [4, 8], "q", [1] * 32)})
    refuse(USAGE, ["lengths are for samples that differ in length"], "run", folder / "several.plan", "--weights", MODELS / "tokens.onnx", "--data", even)


def test_host_memory_is_counted(folder):
    """A batch of x and labels has 48 and 32 bytes, and four are read ahead."""
    compiling = ["compile", MODELS / "linear.onnx", "-o", folder / "p.plan"]
    refuse(BUDGET, ["320 B of host memory", "and 300 B of host memory"], *compiling, "--host-budget", "300")
    succeed(*compiling, "--host-budget", "1KiB", "--cache", "512")
    text = succeed("inspect", folder / "p.plan")
    for wanted in ["host memory", "the budget is 1 KiB", "batches read ahead", "320 B", "cache of decoded samples", "832 B"]:
        expect(wanted in text, f"no '{wanted}' in: {text}")
    host = json.loads(succeed("inspect", folder / "p.plan", "--json"))["memory"]["host"]
    expect((host["loading_bytes"], host["held_bytes"], host["held_budget_bytes"]) == (320, 832, 1024), f"host memory: {host}")
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    running = ["run", folder / "p.plan", "--weights", MODELS / "linear.onnx", "--data", data, "--steps", "1"]
    refuse(BUDGET, ["--cache: 1 KiB and the 320 B"], *running, "--cache", "1KiB")
    refuse(USAGE, ["has no images"], *running)


def test_missing_external_data(folder):
    plan = folder / "p.plan"
    succeed("compile", MODELS / "missing_external.onnx", "-o", plan)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    refuse(MODEL, ["no_such_file.bin"], *run_linear(folder, plan, data, weights=MODELS / "missing_external.onnx"))


def test_weights_of_another_shape(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    refuse(MODEL, ["weight", "7"],
           *run_linear(folder, compile_linear(folder), data, weights=MODELS / "linear_wider.onnx"))


def test_weights_lack_a_parameter(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    weights = write_safetensors(folder / "weights.safetensors", {"bias": X})
    refuse(MODEL, ["weight"], *run_linear(folder, compile_linear(folder), data, weights=weights))


def test_data_of_another_dtype(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": ("F32", [4], "f", [0, 1, 0, 1])})
    refuse(MODEL, ["labels"], *run_linear(folder, compile_linear(folder), data))


def test_data_of_another_shape(folder):
    data = write_safetensors(folder / "batch.safetensors",
                             {"x": ("F32", [4, 2], "f", [0] * 8), "labels": LABELS})
    refuse(MODEL, ["x"], *run_linear(folder, compile_linear(folder), data))


def test_data_lacks_an_input(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X})
    refuse(MODEL, ["labels"], *run_linear(folder, compile_linear(folder), data))


def test_truncated_data(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    data.write_bytes(data.read_bytes()[:-8])
    refuse(MODEL, ["batch.safetensors"], *run_linear(folder, compile_linear(folder), data))


def test_label_out_of_range(folder):
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": ("I64", [4], "q", [0, 1, 9, 1])})
    refuse(MODEL, ["9"], *run_linear(folder, compile_linear(folder), data))


# Plans.

def test_plan_from_a_newer_version(folder):
    plan = compile_linear(folder)
    content = bytearray(plan.read_bytes())
    head = b"\x0a\x0dplimsoll plan\x10"  # field 1, then the tag of field 2, which is the format
    expect(content.startswith(head), "the plan file's head is not as plan.proto says")
    content[len(head)] = 99
    plan.write_bytes(content)
    refuse(MODEL, ["99"], "inspect", plan)


def test_damaged_plan(folder):
    plan = compile_linear(folder)
    content = bytearray(plan.read_bytes())
    content[len(content) // 2] ^= 0xFF
    plan.write_bytes(content)
    refuse(MODEL, ["linear.plan"], "inspect", plan)


def test_model_given_as_a_plan(folder):
    refuse(MODEL, ["linear.onnx"], "inspect", MODELS / "linear.onnx")


def test_budget_below_the_need(folder):
    refuse(BUDGET, ["1 KiB"], "compile", QUICKSTART / "small_gpt.onnx", "-o", folder / "p.plan", "--dim", "batch=8",
           "--budget", "1KiB")
    expect(not (folder / "p.plan").exists(), "a plan was written")


def test_the_least_budget_is_enough(folder):
    """Also where a layout that was not searched to its end turns out lower than it was measured."""
    job = ("compile", QUICKSTART / "small_gpt.onnx", "-o", folder / "p.plan", "--dim", "batch=1", "--accumulate", "2", "--device", "h200", "--moments", "8bit")
    least = re.search(r"\((\d+) bytes", run(*job, "--budget", "560MiB").stderr).group(1)
    succeed(*job, "--budget", least)


# The machine.

def test_missing_file(folder):
    refuse(MACHINE, ["no_such.onnx"], "compile", folder / "no_such.onnx", "-o", folder / "p.plan")


def test_no_folder_to_write_to(folder):
    refuse(MACHINE, ["nowhere"], "compile", MODELS / "linear.onnx", "-o", folder / "nowhere" / "p.plan")


def test_interrupted_write_leaves_the_old_file(folder):
    plan = folder / "p.plan"
    plan.write_text("the old plan")
    refuse(MACHINE, ["p.plan"], "compile", MODELS / "linear.onnx", "-o", plan, file_limit=64)
    expect(plan.read_text() == "the old plan", "the old file is gone")
    expect([f.name for f in folder.iterdir()] == ["p.plan"], "a partial file stays behind")


def test_interrupted_save_leaves_no_file(folder):
    plan = compile_linear(folder)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    saved = folder / "after.safetensors"
    refuse(MACHINE, ["after.safetensors"], *run_linear(folder, plan, data, "--save", saved), file_limit=16)
    expect(not saved.exists(), "a half-written file stands under its final name")


def run_tests(functions, wanted):
    """Runs the functions that are named test_..., or those of them that are wanted, and ends the program."""
    tests = {name.removeprefix("test_"): test for name, test in functions.items() if name.startswith("test_")}
    failed = 0
    for name in wanted or tests:
        with tempfile.TemporaryDirectory() as folder:
            try:
                tests[name](pathlib.Path(folder))
                print(f"ok    {name}")
            except (Failure, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
                failed += 1
                print(f"FAIL  {name}: {error}")
    count = len(wanted or tests)
    print(f"{count - failed} passed, {failed} failed")
    sys.exit(failed != 0)


def main():
    global PROGRAM
    PROGRAM, *wanted = sys.argv[1:]
    run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
