#!/usr/bin/env python3
"""Train with images that a GPU decodes: which ones, in which memory, and what is said where it cannot.

Usage: decoding_test.py PLIMSOLL STAND_IN [TEST ...]

STAND_IN is the library of tests/cuda/stand_in, which decodes JPEGs as nvJPEG does, every pixel before an image is scaled, and leaves every eighth undone. Needs
Python's standard library alone.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fuzz"))
import cli_test
import onnx_writer as onnx
from cli_test import BUDGET, DONE, MACHINE, MODEL, USAGE, expect, refuse, run, succeed
from make_corpus import JPEG, PROGRESSIVE_JPEG
from promise_test import put_stand_in

ROWS, SIDE, IMAGES = 16, 8, 32
MIB = 1 << 20


def make_model(folder):
    nodes = [onnx.node("Flatten", "x", "h", "/flat"), onnx.node("MatMul", "h weight", "logits", "/head"),
             onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss", "/loss")]
    inputs = [onnx.value("x", onnx.FLOAT, ROWS, 3, SIDE, SIDE), onnx.value("labels", onnx.INT64, ROWS)]
    features = 3 * SIDE * SIDE
    weight = onnx.tensor("weight", [features, 2], [0.01 * (i % 7 - 3) for i in range(2 * features)])
    path = folder / "net.onnx"
    path.write_bytes(onnx.model(nodes, inputs, [onnx.value("loss", onnx.FLOAT)], [weight]))
    return path


def make_images(folder):
    for i in range(IMAGES):
        path = folder / "images" / str(i % 2) / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PROGRESSIVE_JPEG if i == 5 else JPEG)
    (folder / "full.toml").write_text('[transforms]\ncrop = "random-resized"\nflip = 0.5\nbrightness = 0.3\ndecode = "full"\n')
    return folder / "images"


def promised_bytes(plan):
    return json.loads(succeed("inspect", plan, "--json"))["memory"]["device"]["promised_bytes"]


class Job:
    def __init__(self, folder, *options, device="h200"):
        put_stand_in(folder, PLIMSOLL, STAND_IN)
        for name in ("PLIMSOLL_STAND_IN_HELD_BYTES", "PLIMSOLL_STAND_IN_LACKS_NVJPEG"):
            os.environ.pop(name, None)
        self.folder, self.model, self.images, self.plan = folder, make_model(folder), make_images(folder), folder / "net.plan"
        succeed("compile", self.model, "-o", self.plan, "--device", device, *options)

    def words(self, *options):
        return ["run", self.plan, "--weights", self.model, "--data", self.images, "--epochs", "2", "--transforms", self.folder / "full.toml", *options]

    def losses(self, *options):
        metrics = self.folder / "metrics.jsonl"
        done = run(*self.words("--metrics", metrics, *options))
        expect(done.returncode == DONE, done.stderr)
        return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()], done


def test_a_gpu_decodes_what_the_processor_would(folder):
    job = Job(folder)
    here, done = job.losses("--decode", "cpu")
    expect("GPU decoded" not in done.stdout and "JPEGs" not in done.stderr, done.stdout + done.stderr)
    there, done = job.losses("--decode", "gpu")
    expect(here == there and len(there) == 4, f"{here} {there}")
    expect("JPEGs are decoded on the GPU, in 232 MiB of its memory beside the plan's promise and 72 MiB pinned" in done.stderr, done.stderr)
    expect("images, the CPU those that are no plain JPEG or too large" in done.stdout, done.stdout)
    # The step is predicted to take its images sooner than any processor decodes them.
    there, done = job.losses()
    expect(here == there and "the GPU decoded" in done.stdout, done.stderr)


def test_the_promise_counts_decoding(folder):
    job = Job(folder)
    promised = promised_bytes(job.plan) + 232 * MIB
    os.environ["PLIMSOLL_STAND_IN_HELD_BYTES"] = str(promised)
    _, done = job.losses("--decode", "gpu")
    expect("promised" in done.stdout, done.stdout)
    os.environ["PLIMSOLL_STAND_IN_HELD_BYTES"] = str(promised + 1)
    refuse(BUDGET, ["before the first step", "--decode cpu"], *job.words("--decode", "gpu"))
    os.environ.pop("PLIMSOLL_STAND_IN_HELD_BYTES")
    reserved = folder / "reserved.plan"
    succeed("compile", job.model, "-o", reserved, "--device", "h200", "--for-gpu-decoding")
    expect(promised_bytes(reserved) == promised, f"promises {promised_bytes(reserved)}, not {promised}")
    expect("reserve: JPEG decoding (nvJPEG)" in succeed("inspect", reserved), "the reserve has no line")
    job.plan = reserved
    _, done = job.losses("--decode", "gpu")
    expect("232 MiB of its memory that the plan reserves" in done.stderr, done.stderr)


def test_budgets_without_room(folder):
    job = Job(folder)
    tight = promised_bytes(job.plan) + 100 * MIB
    succeed("compile", job.model, "-o", job.plan, "--device", "h200", "--budget", tight)
    refuse(BUDGET, ["--decode gpu: it takes 232 MiB of device memory", "--for-gpu-decoding"], *job.words("--decode", "gpu"))
    _, done = job.losses()
    expect("nvJPEG could, but it takes 232 MiB" in done.stderr and "GPU decoded" not in done.stdout, done.stderr)
    refuse(BUDGET, ["budget"], "compile", job.model, "-o", folder / "p.plan", "--device", "h200", "--budget", tight, "--for-gpu-decoding")
    succeed("compile", job.model, "-o", job.plan, "--device", "h200", "--host-budget", "8MiB")
    refuse(BUDGET, ["it pins 72 MiB of host memory", "of the host budget"], *job.words("--decode", "gpu"))
    _, done = job.losses()
    expect("nvJPEG could, but it pins 72 MiB" in done.stderr, done.stderr)


def test_without_nvjpeg(folder):
    job = Job(folder)
    os.environ["PLIMSOLL_STAND_IN_LACKS_NVJPEG"] = "1"
    refuse(MACHINE, ["--decode gpu", "nvJPEG"], *job.words("--decode", "gpu"))
    _, done = job.losses()
    expect("JPEGs are decoded by the processor: " in done.stderr and "nvJPEG" in done.stderr, done.stderr)


def test_what_decoding_is_not_for(folder):
    job = Job(folder)
    refuse(USAGE, ["--decode", "tpu"], *job.words("--decode", "tpu"))
    refuse(USAGE, ["--cache"], *job.words("--decode", "gpu", "--cache", "1MiB"))
    _, done = job.losses("--cache", "1MiB")
    expect("the cache held" in done.stdout and "GPU decoded" not in done.stdout, done.stdout)
    (job.images / "0" / "0.jpg").write_bytes(JPEG[:100])
    refuse(MODEL, ["0/0.jpg"], *job.words("--decode", "gpu"))
    succeed("compile", job.model, "-o", job.plan, "--device", "cpu", "--for-gpu-decoding")
    refuse(USAGE, ["the plan is for cpu"], *job.words("--decode", "gpu"))


def test_a_job_reserves_what_it_decodes_in(folder):
    job = Job(folder)
    (folder / "job.toml").write_text(f"""
model = "{job.model}"
data = "{job.images}"
device = "h200"
decode = "gpu"
epochs = 1
[transforms]
flip = 0.5
""")
    done = run("train", folder / "job.toml")
    expect(done.returncode == DONE and "232 MiB of its memory that the plan reserves" in done.stderr, done.stderr)
    expect("the GPU decoded" in done.stdout, done.stdout)


def main():
    global PLIMSOLL, STAND_IN
    PLIMSOLL, STAND_IN, *wanted = sys.argv[1:]
    cli_test.run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
