#!/usr/bin/env python3
"""Give the plimsoll program hostile and odd files: it refuses them in words, soon, and never answers with a wrong result.

Usage: hostile_test.py PLIMSOLL [TEST ...]

Needs Python's standard library alone. Prints one line per test and `N passed, N failed`.
"""
import io
import json
import os
import pathlib
import resource
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_test
import onnx_writer as onnx
from cli_test import (BUDGET, DONE, LABELS, MACHINE, MODEL, MODELS, QUICKSTART, USAGE, X, compile_linear, expect, refuse,
                      processor_seconds, run, run_linear, soon, succeed, write_safetensors)


def save(path, content):
    path.write_bytes(content)
    return path


def batch(folder):
    return write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})


# Tokens.

def token_plan(folder):
    plan = folder / "gpt.plan"
    succeed("compile", QUICKSTART / "small_gpt.onnx", "-o", plan, "--dim", "batch=2", "--device", "cpu")
    return plan


def train_tokens(plan, data, *options):
    return ["run", plan, "--weights", QUICKSTART / "small_gpt.onnx", "--data", data, "--steps", "1", *options]


def test_text_is_no_token_file(folder):
    plan = token_plan(folder)
    text = "To be, or not to be, that is the question. " * 400
    for name in ("corpus.txt", "corpus.jsonl", "table.parquet", "plain"):
        data = save(folder / name, text.encode())
        refuse(MODEL, [name, "no token file"], *train_tokens(plan, data))
    refuse(MODEL, ["Parquet"], *train_tokens(plan, save(folder / "tokens.bin", b"PAR1" + bytes(range(256)) * 200)))


def test_tokens_of_another_width(folder):
    tokens = struct.pack("<20000I", *(i % 60 for i in range(20000)))
    refuse(MODEL, ["32 bits"], *train_tokens(token_plan(folder), save(folder / "tokens.bin", tokens)))


def test_tokens_of_another_vocabulary(folder):
    tokens = save(folder / "tokens.bin", struct.pack("<20000H", *(40000 + i % 7 for i in range(20000))))
    refuse(MODEL, ["tokens.bin: token ", "(byte ", "different tokens"], *train_tokens(token_plan(folder), tokens))


# Bad numbers.

def test_bad_loss_names_the_first_bad_op(folder):
    x = [0.25 * i for i in range(12)]
    x[5] = -1.0
    model = save(folder / "log.onnx", onnx.linear(extra=[onnx.node("Log", "x", "h", "/odd/Log")]))
    plan, saved = folder / "log.plan", folder / "after.safetensors"
    succeed("compile", model, "-o", plan, "--device", "cpu")
    data = write_safetensors(folder / "log.safetensors", {"x": ("F32", [4, 3], "f", [1 + abs(n) for n in x]), "labels": LABELS})
    succeed("run", plan, "--weights", model, "--data", data, "--steps", "2")
    data = write_safetensors(folder / "log.safetensors", {"x": ("F32", [4, 3], "f", x), "labels": LABELS})
    arguments = ["run", plan, "--weights", model, "--data", data, "--steps", "3", "--save", saved]
    refuse(MODEL, ["step 1: the loss is NaN", "/odd/Log"], *arguments)
    expect(not saved.exists(), "spoilt weights are saved")
    refuse(MODEL, ["not saved"], *arguments, "--on-bad-loss", "continue")
    expect(not saved.exists(), "spoilt weights are saved")
    succeed(*arguments[:-2], "--on-bad-loss", "continue")


def test_bad_loss_names_a_bad_input(folder):
    values = [0.25 * i for i in range(12)]
    values[3] = float("nan")
    data = write_safetensors(folder / "batch.safetensors", {"x": ("F32", [4, 3], "f", values), "labels": LABELS})
    refuse(MODEL, ["step 1", "NaN in the input 'x'"], *run_linear(folder, compile_linear(folder), data))


def test_diverging_run_names_step_and_op(folder):
    arguments = run_linear(folder, compile_linear(folder), batch(folder))
    arguments[arguments.index("2")] = "60"
    refuse(MODEL, ["step "], *arguments, "--lr", "1e38")


# Archives.

def npy(dtype, shape, data):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (63 - (len(text) + 10) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def test_damaged_archive_members(folder):
    plan = compile_linear(folder)
    path = folder / "batch.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy("<f4", "(4, 3)", struct.pack("<12f", *X[3])))
        archive.writestr("labels.npy", npy("<i8", "(4,)", struct.pack("<4q", *LABELS[3])))
    succeed(*run_linear(folder, plan, path))
    content = bytearray(path.read_bytes())
    content[content.index(struct.pack("<f", 0.25))] ^= 1
    path.write_bytes(content)
    refuse(MODEL, ["batch.npz:x.npy", "checksum"], *run_linear(folder, plan, path))


def test_arrays_larger_than_any_file(folder):
    plan = compile_linear(folder)
    for shape in ("(4611686018427387904, 4)", "(9223372036854775807, 2)"):
        refuse(MODEL, ["x.npy"], *run_linear(folder, plan, save(folder / "x.npy", npy("<f4", shape, b"\0" * 48))))


# Outputs.

def test_outputs_replace_no_input(folder):
    model = save(folder / "m.onnx", (MODELS / "linear.onnx").read_bytes())
    before = model.read_bytes()
    refuse(USAGE, ["m.onnx", "input"], "compile", model, "-o", model)
    refuse(USAGE, ["m.onnx", "input"], "compile", model, "-o", folder / "p.plan", "--html", model)
    expect(model.read_bytes() == before, "the model is gone")
    plan, data = compile_linear(folder), batch(folder)
    for option, path in (("--save", model), ("--save", data), ("--metrics", data), ("--metrics", plan),
                         ("--dump-gradients", model), ("--save", folder / ".." / folder.name / "batch.safetensors")):
        refuse(USAGE, ["input"], *run_linear(folder, plan, data, option, path, weights=model))
    refuse(USAGE, ["linear.plan"], "inspect", plan, "--html", plan)
    expect(model.read_bytes() == before and plan.exists() and data.exists(), "an input is gone")


def test_outputs_replace_no_link_device_or_fifo(folder):
    model = MODELS / "linear.onnx"
    target, link, fifo = folder / "target", folder / "link.plan", folder / "fifo.plan"
    target.write_text("precious")
    link.symlink_to(target)
    os.mkfifo(fifo)
    refuse(USAGE, ["symbolic link"], "compile", model, "-o", link)
    refuse(USAGE, ["fifo"], "compile", model, "-o", fifo)
    expect(target.read_text() == "precious" and link.is_symlink() and fifo.is_fifo(), "something is replaced")
    if os.geteuid() != 0:
        return  # only root makes devices, and may replace those of the machine
    device = folder / "null.plan"
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    refuse(USAGE, ["device"], "compile", model, "-o", device)
    expect(device.is_char_device(), "the device is replaced")


def test_unwritable_saves_are_said_before_the_first_step(folder):
    plan, data, metrics = compile_linear(folder), batch(folder), folder / "metrics.jsonl"
    for option in ("--save", "--dump-gradients", "--profile"):
        path = folder / "nowhere" / "after.safetensors"
        refuse(MACHINE, ["nowhere"], *run_linear(folder, plan, data, option, path, "--metrics", metrics))
        expect(not metrics.exists(), "steps were made")
    taken = save(folder / "taken", b"")
    job = ["train", "--model", MODELS / "linear.onnx", "--data", data, "--device", "cpu", "--steps", "1"]
    for option, path in (("--csv", folder / "nowhere" / "a.csv"), ("--metrics", folder), ("--log", taken / "log"), ("--tensorboard", taken),
                         ("--checkpoint", taken / "a" / "b")):
        for command in (run_linear(folder, plan, data), job):
            refuse(MACHINE, [f"{option}: {path}: "], *command, option, path)
        # Before a plan is searched for.
        expect("plimsoll: " not in run(*job, option, path).stderr.replace("plimsoll: error: ", ""), "the job was compiled first")


# Files that are no files.

def test_fifos_and_devices_as_input(folder):
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    plan, data = compile_linear(folder), batch(folder)
    model, arrays = folder / "fifo.onnx", folder / "fifo.npz"
    os.mkfifo(model)
    os.mkfifo(arrays)
    for path in (fifo, pathlib.Path("/dev/zero")):
        for arguments in (["compile", path, "-o", folder / "p.plan"], ["inspect", path], ["check", path],
                          ["devices", "--device-file", path],
                          ["compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--timings", path],
                          ["compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--config", path]):
            soon(20, lambda: refuse(MACHINE, ["not a regular file"], *arguments))
    soon(20, lambda: refuse(MACHINE, ["not a regular file"], *run_linear(folder, plan, data, weights=model)))
    soon(20, lambda: refuse(MACHINE, ["not a regular file"], *run_linear(folder, plan, arrays)))
    for option in (("--transforms", fifo), ("--precision", "bf16", "--precision-file", fifo)):
        job = ["train", "--model", MODELS / "linear.onnx", "--data", data, "--device", "cpu", "--steps", "1", *option]
        soon(20, lambda: refuse(MACHINE, ["not a regular file"], *job))
    for path in (folder / "images" / "labels.csv", folder / "shard.tar", folder / "checkpoints" / "step-000001" / "checkpoint.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    save(folder / "images" / "a.png", b"")
    for path in (folder / "images", folder / "shard.tar"):
        soon(20, lambda: refuse(MACHINE, ["not a regular file"], "data", path))
    resumed = run_linear(folder, plan, data, "--resume", folder / "checkpoints" / "step-000001")
    soon(20, lambda: refuse(MACHINE, ["checkpoint.json: not a regular file"], *resumed))


# JSON.

def test_deep_json(folder):
    deep = "[" * 60000 + "]" * 60000
    plan = compile_linear(folder)
    header = ('{"x": ' + deep + "}").encode()
    data = save(folder / "deep.safetensors", struct.pack("<Q", len(header)) + header)
    refuse(MODEL, ["nested"], *run_linear(folder, plan, data))
    for option in ("--device-file", "--timings", "--cluster"):
        path = save(folder / "deep.json", deep.encode())
        refuse(USAGE, ["deep.json"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", option, path)
    images = folder / "images"
    images.mkdir()
    save(images / "a.png", b"")
    save(images / "labels.json", ('{"a.png": ' + deep + "}").encode())
    refuse(MODEL, ["labels.json", "nested"], "data", images)
    with tarfile.open(folder / "shard.tar", "w") as shard:
        for name, content in (("a.png", b""), ("a.json", deep.encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    refuse(MODEL, ["shard.tar", "a.json", "nested"], "data", folder / "shard.tar")
    checkpoint = folder / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    save(checkpoint / "checkpoint.json", deep.encode())
    refuse(MODEL, ["checkpoint.json", "nested"], *run_linear(folder, plan, batch(folder), "--resume", checkpoint))


def test_devices_with_absurd_numbers(folder):
    device = {"name": "odd", "title": "Odd", "backend": "cpu", "memory_bytes": 1 << 30,
              "reserves": [], "matmul_tflops": {"f32": 1}, "vector_tflops": 1, "memory_gb_per_s": 10, "launch_us": 1}
    for field, number in (("alignment_bytes", 1 << 62), ("memory_bytes", (1 << 63) - 1), ("alignment_bytes", 3)):
        path = folder / "devices.json"
        path.write_text(json.dumps({"devices": [{**device, field: number}]}))
        refuse(USAGE, [field], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--device-file", path,
               "--device", "odd")


# Models.

def refuse_model(folder, content, *texts):
    path = save(folder / "odd.onnx", content)
    refuse(MODEL, texts, "compile", path, "-o", folder / "odd.plan", "--device", "cpu")
    expect(run("check", path).returncode == MODEL, "check says that it can be trained")


def test_functions_that_call_each_other_twice(folder):
    functions = [onnx.function("f0", "a", "b", [onnx.node("Relu", "a", "b")])]
    for i in range(1, 40):
        functions.append(onnx.function(f"f{i}", "a", "b", [onnx.node(f"f{i - 1}", "a", "c", domain="own"),
                                                          onnx.node(f"f{i - 1}", "c", "b", domain="own")]))
    content = onnx.linear(extra=[onnx.node("f39", "x", "h", "/deep", domain="own")], functions=functions)
    soon(120, lambda: refuse_model(folder, content))


def test_lstm_of_ten_million_steps(folder):
    steps = 10_000_000
    weights = [onnx.tensor("w", [1, 4, 1], [0.1] * 4), onnx.tensor("r", [1, 4, 1], [0.1] * 4)]
    nodes = [onnx.node("LSTM", "x w r", "y", "/lstm", hidden_size=1), onnx.node("ReduceMean", "y", "loss", keepdims=0)]
    content = onnx.model(nodes, [onnx.value("x", onnx.FLOAT, steps, 1, 1)], [onnx.value("loss", onnx.FLOAT)], weights)
    soon(60, lambda: refuse_model(folder, content))


def test_initializer_shorter_than_its_shape(folder):
    for short in (onnx.tensor("weight", [3, 2], [0.5] * 5), onnx.tensor("weight", [3, 2]),
                  onnx.tensor("weight", [1 << 40, 2], [0.5] * 6)):
        refuse_model(folder, onnx.linear(short))


def test_external_data_outside_the_folder(folder):
    inside = folder / "model"
    inside.mkdir()
    save(folder / "secret.bin", struct.pack("<6f", *range(6)))
    (inside / "link.bin").symlink_to(folder / "secret.bin")
    (inside / "folder").symlink_to(folder)
    save(inside / "short.bin", b"\0" * 20)
    for location in ("../secret.bin", str(folder / "secret.bin"), "link.bin", "folder/secret.bin", "short.bin"):
        content = onnx.linear(onnx.tensor("weight", [3, 2], external={"location": location, "offset": 0, "length": 24}))
        refuse_model(inside, content, "weight")
    save(inside / "own.bin", struct.pack("<6f", *range(6)))
    content = onnx.linear(onnx.tensor("weight", [3, 2], external={"location": "own.bin", "offset": 0, "length": 24}))
    succeed("compile", save(inside / "good.onnx", content), "-o", inside / "good.plan", "--device", "cpu")


def test_links_to_a_model_and_its_data_in_one_folder(folder):
    blobs, snapshot = folder / "blobs", folder / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    save(blobs / "b1", struct.pack("<6f", *range(6)))
    save(blobs / "b0", onnx.linear(onnx.tensor("weight", [3, 2], external={"location": "m.data", "offset": 0, "length": 24})))
    (snapshot / "m.onnx").symlink_to(blobs / "b0")
    (snapshot / "m.data").symlink_to(blobs / "b1")
    succeed("check", snapshot / "m.onnx")


def test_opset_0(folder):
    refuse_model(folder, onnx.linear(opset=0), "opset")


def test_control_bytes_in_names(folder):
    bad = onnx.node("Det", "x", "h", "/odd\x1b]0;owned\x07\x1b[2J/Det\r\x9b")
    path = save(folder / "names.onnx", onnx.linear(extra=[bad]))
    for command in (["check", path], ["compile", path, "-o", folder / "p.plan"]):
        done = run(*command)
        expect(not any(ord(c) < 32 and c not in "\n\t" for c in done.stdout + done.stderr), "control bytes get through")
    name = "x\x1b[2J"
    path = save(folder / "names.onnx", onnx.linear(x=name))
    plan = folder / "names.plan"
    succeed("compile", path, "-o", plan, "--device", "cpu")
    for option in ([], ["--text"], ["--json"], ["--why", "loss"]):
        done = run("inspect", plan, *option)
        expect("\x1b" not in done.stdout + done.stderr, f"inspect {option} prints control bytes")


def test_huge_dimensions_are_named(folder):
    refuse_model(folder, onnx.linear(rows=(1 << 62) + 1))
    refuse_model(folder, onnx.linear(rows=-5))


def test_positions_beyond_their_table(folder):
    """64 rows of positions: `check` takes a length that they hold, and a longer one is refused by the node that reads them."""
    nodes = [onnx.node("Gather", "words ids", "w", "/words"), onnx.node("Shape", "ids", "shape"), onnx.node("Gather", "shape one", "length"),
             onnx.node("Range", "zero length one", "range"), onnx.node("Gather", "table range", "p", "/positions"), onnx.node("Add", "w p", "h"),
             onnx.node("MatMul", "h head", "l"), onnx.node("ReduceMean", "l", "loss", keepdims=0)]
    weights = [onnx.tensor("words", [7, 4], [0.1] * 28), onnx.tensor("table", [64, 4], [0.1] * 256), onnx.tensor("head", [4, 7], [0.1] * 28),
               *(onnx.tensor(name, [], raw=struct.pack("<q", number), dtype=onnx.INT64) for name, number in (("zero", 0), ("one", 1)))]
    path = save(folder / "positions.onnx", onnx.model(nodes, [onnx.value("ids", onnx.INT64, "batch", "seq")], [onnx.value("loss", onnx.FLOAT)], weights))
    expect("--dim seq=64" in succeed("check", path), "check guesses a length that the model has")
    job = ["compile", path, "-o", folder / "p.plan", "--device", "cpu", "--dim", "batch=2"]
    succeed(*job, "--dim", "seq=64")
    refuse(MODEL, ["/positions", "index 64 is outside dimension 0 of f32[64,4]", "longer"], *job, "--dim", "seq=65")


def test_windows_that_overflow(folder):
    huge = (1 << 63) - 1
    # In 64 bits, twice the dilation `huge` is -2, and the pool would have more outputs than inputs.
    for extra in (dict(kernel_shape=[3, 3], dilations=[huge, huge]),
                  dict(kernel_shape=[huge, huge], strides=[1, 1]), dict(kernel_shape=[2, 2], dilations=[huge, huge]),
                  dict(kernel_shape=[2, 2], pads=[huge, huge, huge, huge]), dict(kernel_shape=[2, 2], pads=[-huge, 0, 0, 0])):
        nodes = [onnx.node("Reshape", "x shape", "i"), onnx.node("MaxPool", "i", "p", "/pool", **extra),
                 onnx.node("ReduceMean", "p", "m", keepdims=0), onnx.node("MatMul", "x weight", "l"),
                 onnx.node("ReduceMean", "l", "n", keepdims=0), onnx.node("Add", "m n", "loss")]
        weights = [onnx.tensor("weight", [3, 2], [0.1] * 6),
                   onnx.tensor("shape", [4], raw=struct.pack("<4q", 1, 1, 4, 3), dtype=onnx.INT64)]
        refuse_model(folder, onnx.model(nodes, [onnx.value("x", onnx.FLOAT, 4, 3)], [onnx.value("loss", onnx.FLOAT)], weights))


def test_reshape_whose_elements_overflow(folder):
    """In 64 bits, 4 * (2^62 + 3) is 12."""
    nodes = [onnx.node("Reshape", "x shape", "wide", "/wide"), onnx.node("ReduceMean", "wide", "m", keepdims=0),
             onnx.node("MatMul", "x weight", "l"), onnx.node("ReduceMean", "l", "n", keepdims=0), onnx.node("Add", "m n", "loss")]
    weights = [onnx.tensor("weight", [3, 2], [0.1] * 6),
               onnx.tensor("shape", [2], raw=struct.pack("<2q", 4, (1 << 62) + 3), dtype=onnx.INT64)]
    refuse_model(folder, onnx.model(nodes, [onnx.value("x", onnx.FLOAT, 4, 3)], [onnx.value("loss", onnx.FLOAT)], weights), "cannot view")


def test_long_chains_take_time_in_proportion(folder):
    """Eight times the nodes take about eight times as long, where quadratic work would take 64 times."""
    seconds = []
    for length in (2000, 16000):
        nodes = [onnx.node("Tanh", "x" if i == 0 else f"v{i - 1}", "h" if i == length - 1 else f"v{i}") for i in range(length)]
        path = save(folder / f"chain{length}.onnx", onnx.linear(extra=nodes))
        seconds.append(processor_seconds(lambda: succeed("check", path)))
    expect(seconds[1] < 20 * seconds[0], f"2,000 nodes take {seconds[0]:.1f} s, 16,000 take {seconds[1]:.1f}")


# The machine.

def test_full_disk_on_stdout(folder):
    plan = compile_linear(folder)
    with open("/dev/full", "w") as full:
        done = subprocess.run([cli_test.PROGRAM, "inspect", str(plan), "--json"], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=60)
    expect(done.returncode == MACHINE and "No space left" in done.stderr, f"exits {done.returncode}: {done.stderr[:200]}")


def test_little_memory(folder):
    """Far above what the program and its libraries need, and far below what the plan does."""
    plan, data = folder / "large.plan", batch(folder)
    succeed("compile", MODELS / "linear.onnx", "-o", plan, "--optimizer", "sgd", "--lr", "0.1", "--batch", 1 << 26)
    for used, code, mib in ((plan, MACHINE, 256), (plan, MACHINE, 512), (compile_linear(folder), DONE, 512)):
        done = subprocess.run([cli_test.PROGRAM, *map(str, run_linear(folder, used, data))], capture_output=True, text=True, timeout=120,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)))
        expect(done.returncode == code, f"exits {done.returncode} in place of {code} with {mib} MiB: {done.stderr[:200]}")
        expect((code == DONE) == ("plimsoll: error: " not in done.stderr), f"with {mib} MiB: {done.stderr[:200]}")


def run_with_memory(kib, *arguments):
    return subprocess.run([cli_test.PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (kib << 10, kib << 10)))


def test_memory_that_ends_anywhere(folder):
    """From what the system's loader needs to start the program up to the first run that has enough."""
    arguments = run_linear(folder, compile_linear(folder), batch(folder))
    kib, refused = 32 << 10, 0
    while run_with_memory(kib, "--version").returncode != 0:
        kib += 2 << 10
        expect(kib < 1 << 20, "the program does not start in 1 GiB")
    while (done := run_with_memory(kib, *arguments)).returncode != DONE:
        expect(done.returncode == MACHINE and "plimsoll: error: " in done.stderr,
               f"exits {done.returncode} with {kib} KiB: {done.stderr[:200]}")
        kib, refused = kib + (1 << 10), refused + 1
    expect(refused > 0, "no run lacked memory")


# Configuration.

def test_regular_expressions_that_repeat_too_much(folder):
    bomb, text = "((((a{255}){255}){255}){255})", "repeats too much for a regular expression"
    rules = save(folder / "rules", f"module:{bomb} = fp32\n".encode())
    job = ["compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--device", "cpu", "--precision", "bf16"]
    for option in (("--precision-file", rules), ("--freeze", bomb), ("--train", bomb), ("--no-decay", bomb), ("--lora-rank", "2", "--lora-targets", bomb)):
        soon(20, lambda: refuse(USAGE, [text], *job, *option))
    adapter = folder / "adapter"
    adapter.mkdir()
    write_safetensors(adapter / "adapter_model.safetensors", {"x.lora_A.weight": ("F32", [1], "f", [0])})
    save(adapter / "adapter_config.json", json.dumps({"alpha_pattern": {bomb: 2}}).encode())
    arguments = ["merge", MODELS / "linear.onnx", "--adapter", adapter, "-o", folder / "merged.onnx"]
    soon(20, lambda: refuse(USAGE, ["adapter_config.json", "alpha_pattern", text], *arguments))


def test_config_keys_that_no_option_reads(folder):
    for text in ("[compile.inner]\nbatch = 4\n", "[compil]\nbatch = 4\n", "[run]\nsteps = 2\n[other]\nx = 1\n",
                 "compile.inner.batch = 4\n", "batch = 4\n[run]\nstep = 2\n"):
        config = folder / "job.toml"
        config.write_text(text)
        refuse(USAGE, ["job.toml"], "compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--config", config)


def main():
    cli_test.PROGRAM, *wanted = sys.argv[1:]
    cli_test.run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
