#!/usr/bin/env python3
"""Compare training of adapters with what PEFT computed. Needs Python's standard library alone; with PEFT installed, what
was saved is loaded by it as well.

Usage: check_adapters.py PLIMSOLL [CASE ...]

Prints one line per case and `N passed, N failed`. Each case goes on from PEFT's first adapter for five steps, and is then
merged, converted between the three formats of files, and gone on from.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from check_golden import FOLDER, LIMITS, OPTIMIZER_OPTIONS, execute, load_floats, relative, unpack

DORA_EXPORTS = ["dora_llama_folded", "dora_llama_dropout", "dora_gpt2_plain", "dora_net_drawn", "dora_net_mixed", "dora_net_dropout", "dora_net_torchscript", "dora_net_torchscript_drawn"]
CASES = ["llama_gqa", "gpt2", "unet", "dora_llama", "dora_gpt2", "quantised", "peft_llama", "peft_llama_dropout", "peft_net", "peft_net_torchscript", "peft_net_folded",
         *DORA_EXPORTS, "diffusion"]
# Archives of cases that have a model of their own.
ARCHIVES = {"quantised": "quantised", "diffusion": "diffusion", **{case: "peft_exports" for case in CASES if case.startswith("peft_")},
            **{case: "dora_exports" for case in DORA_EXPORTS}}
MODELS = {"dora_llama": "llama_gqa", "dora_gpt2": "gpt2"}  # of other cases
GRADIENT_LIMIT, LOSS_LIMIT = LIMITS["fp32"][:2]
MIXED_LIMITS = LIMITS["bf16"][:2]  # of a base of 16 bits
NOTHING_DROPPED = 2.0**-30  # a share of inputs with which PEFT computes as with dropout, and drops none
LAST_DIGITS = 2e-6  # of f32 losses whose sums run in another order


def losses_of(metrics):
    return [row["loss"] for row in map(json.loads, metrics.read_text().splitlines()) if "loss" in row]


def unpack_adapter(case, folder):
    with tarfile.open(FOLDER / ("dora.tar.xz" if case.startswith("dora_") else "adapters.tar.xz")) as archive:
        for member in archive.getmembers():
            if member.name.startswith(case + "/"):
                archive.extract(member, folder / "adapters")
    return folder / "adapters" / case


def unpack_own(case, folder):
    with tarfile.open(FOLDER / f"{ARCHIVES[case]}.tar.xz") as archive:
        for member in archive.getmembers():
            if member.name.startswith(case + "/"):
                archive.extract(member, folder)
    return folder / case


class Case:
    def __init__(self, program, name, folder):
        self.program = program
        if name in ARCHIVES:
            self.base = self.adapter = unpack_own(name, pathlib.Path(folder))
        else:
            self.base, self.adapter = unpack(MODELS.get(name, name), folder), unpack_adapter(name, pathlib.Path(folder))
        self.trained = self.base / "trained"  # what is saved here
        self.expected = json.loads((self.adapter / "expected.json").read_text())
        self.gradient_limit, self.loss_limit = MIXED_LIMITS if name.endswith("_mixed") else (GRADIENT_LIMIT, LOSS_LIMIT)
        self.model, self.plan = self.base / "model.onnx", self.base / "adapted.plan"

    def compile(self, *options, model=None, plan=None):
        for key, value in self.expected["optimizer"].items():
            options += (OPTIMIZER_OPTIONS[key], str(value))
        execute([self.program, "compile", model or self.model, "-o", plan or self.plan, "--device", "cpu", *options], 120)

    def run(self, steps, *options, model=None, plan=None):
        metrics = self.base / "metrics.jsonl"
        execute([self.program, "run", plan or self.plan, "--weights", model or self.model, "--data",
                 self.base / "batch.safetensors", "--steps", str(steps), "--metrics", metrics, *options], 120)
        return losses_of(metrics)


def first_loss_differs(losses, want):
    return abs(losses[0] - want) / abs(want)


def check_training(case):
    """Losses, gradients of the first step and the adapter after the last, beside PEFT's."""
    expected = case.expected
    case.compile(*expected["options"])
    losses = case.run(expected["steps"], "--adapter", case.adapter / "init", "--save-adapter", case.trained,
                      "--dump-gradients", case.base / "gradients.safetensors")
    loss = max(abs(got - want) / abs(want) for got, want in zip(losses, expected["losses"]))
    got, want = load_floats(case.base / "gradients.safetensors")[0], load_floats(case.adapter / "grads.safetensors")[0]
    prefix = "base_model.model."
    gradient = max(relative(got[expected["root"] + key[len(prefix):]], values) for key, values in want.items()
                   if "lora_embedding_A" not in key)
    saved, shapes = load_floats(case.trained / "adapter_model.safetensors")
    wanted, wanted_shapes = load_floats(case.adapter / "after" / "adapter_model.safetensors")
    # PEFT saves the frozen table beside an embedding's adapter.
    wanted_shapes = {key: shape for key, shape in wanted_shapes.items() if ".base_layer." not in key}
    if shapes != wanted_shapes:
        raise RuntimeError(f"saved {sorted(shapes.items())[:3]}, PEFT {sorted(wanted_shapes.items())[:3]}")
    parameter = max(relative(saved[key], wanted[key]) for key in shapes)
    return [("loss", loss, 10 * case.loss_limit), ("gradient", gradient, case.gradient_limit), ("parameter", parameter, 10 * case.gradient_limit)]


def check_config(case):
    ours = json.loads((case.trained / "adapter_config.json").read_text())
    theirs = json.loads((case.adapter / "after" / "adapter_config.json").read_text())
    keys = ["peft_type", "use_rslora", "use_dora", "lora_dropout", "bias"]
    if "frozen_loss" not in case.expected:  # such files say nothing of how a layer keeps its weight
        keys.append("fan_in_fan_out")
    mixed = theirs["rank_pattern"] or theirs["alpha_pattern"]  # which number is most modules' own is a choice
    wrong = [key for key in keys + ([] if mixed else ["r", "lora_alpha"]) if ours[key] != theirs[key]]
    return [("settings", len(wrong), 0)]


def check_going_on(case):
    """The first loss of a run that goes on, from each format, is that of the run that would have gone on itself."""
    whole = case.run(case.expected["steps"] + 1, "--adapter", case.adapter / "init")[-1]
    differences = [first_loss_differs(case.run(1, "--adapter", case.trained), whole)]
    # Other formats have no room for adapters of embeddings and for whole parameters.
    only_peft = any("lora_embedding" in key or "magnitude" in key or ".lora_" not in key for key in load_floats(case.trained / "adapter_model.safetensors")[1])
    for format in [] if only_peft else ["diffusers", "kohya"]:
        file = case.base / f"{format}.safetensors"
        case.run(0, "--adapter", case.trained, "--save-adapter", file, "--adapter-format", format)
        differences.append(first_loss_differs(case.run(1, "--adapter", file), whole))
    return [("gone on", max(differences), LAST_DIGITS)]


def refusal(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stderr if done.returncode else ""


def check_quantised(case):
    """A model whose file has codes: without adapters its loss is ONNX Runtime's, its codes are not trained, and nothing is merged
    into them. What is trained beside the adapters leaves the codes as they were."""
    plan, saved = case.base / "frozen.plan", case.base / "saved.onnx"
    case.compile("--lora-rank", "2", "--dora", plan=plan)  # magnitudes start as the norms
    with_magnitudes = case.run(1, plan=plan)
    case.compile("--train", "bias", plan=plan)
    loss = case.run(1, "--save", saved, plan=plan)[0]
    job = [case.program, "compile", case.model, "-o", plan, "--device", "cpu"]
    wanted = [(job, "quantised in the model's file"), ([*job, "--train", "fc1"], "codes are not trained"),
              ([case.program, "run", case.plan, "--init", "1", "--data", case.base / "batch.safetensors"], "read by"),
              ([case.program, "merge", case.model, "--adapter", case.adapter / "init", "-o", saved], "merged into floats")]
    wrong = [text for command, text in wanted if text not in refusal(command)]
    if wrong:
        raise RuntimeError(f"not said: {wrong}")
    return [("frozen", first_loss_differs([loss], case.expected["frozen_loss"]), LOSS_LIMIT),
            ("with magnitudes", first_loss_differs(with_magnitudes, case.expected["frozen_loss"]), LOSS_LIMIT)]


def check_exported(case):
    """Adapters that the model's file has: without others their own first values are used, `check` names their modules, --train
    trains something else, and neither other adapters nor a merge are possible."""
    def failed(what):
        raise RuntimeError(what)
    loss = case.run(1)[0]
    said = execute([case.program, "check", case.model], 120)
    plan, base = case.base / "other.plan", [case.program, "compile", case.model, "--device", "cpu"]
    modules = {key.split(".lora_")[0].split("base_model.model.")[1] for key in load_floats(case.adapter / "init" / "adapter_model.safetensors")[1]
               if ".lora_" in key}
    f"adapters in the model, {len(modules)} nodes" in said or failed(f"check does not name {len(modules)} modules: {said}")
    ("with magnitudes" in said) == case.base.name.startswith("dora_") or failed(f"check does not say whether there are magnitudes: {said}")
    "already" in refusal([*base, "-o", plan, "--lora-rank", "2"]) or failed("further adapters are not refused")
    "has adapters itself" in refusal([case.program, "merge", case.model, "--adapter", case.adapter / "init", "-o", case.base / "m.onnx"]) \
        or failed("a merge is not refused")
    case.compile("--train", "norm|base_layer", plan=plan)
    "no adapters" in refusal([case.program, "run", plan, "--weights", case.model, "--data", case.base / "batch.safetensors", "--save-adapter",
                              case.base / "none"]) or failed("--train does not override")
    if case.base.name in ["peft_llama", "dora_llama_folded"]:  # the base in 4 bits
        case.compile("--quantize", "nf4", plan=plan)
        "frozen weights: nf4" in execute([case.program, "inspect", plan], 60) or failed("the base is not quantised")
        math.isfinite(case.run(2, plan=plan)[1]) or failed("no loss over a quantised base")
    return [("own first values", first_loss_differs([loss], case.expected["frozen_loss"]), case.loss_limit)]


def check_merged(case):
    """A merged model's loss without adapters is that of the model with them."""
    if "exported" in case.expected:
        return check_exported(case)
    if "frozen_loss" in case.expected:
        return check_quantised(case)
    merged, plan = case.base / "merged.onnx", case.base / "merged.plan"
    execute([case.program, "merge", case.model, "--adapter", case.adapter / "init", "-o", merged], 120)
    case.compile(model=merged, plan=plan)
    return [("merged", first_loss_differs(case.run(1, model=merged, plan=plan), case.expected["losses"][0]), LOSS_LIMIT)]


def check_diffusers(case):
    """The loss that diffusers computes with the adapter that was saved here, in the two formats that its pipelines read."""
    try:
        import torch
        from diffusers import StableDiffusionPipeline
        from make_adapters import load_weights
        from make_diffusion import NoiseLoss, unet
        from safetensors.torch import load_file
    except ImportError:
        return []
    differences = []
    for format in ["diffusers", "kohya"]:
        model = NoiseLoss(unet())
        load_weights(model, case.model, "")
        state, alphas, *metadata = StableDiffusionPipeline.lora_state_dict(case.base / f"{format}.safetensors", unet_config=model.unet.config, return_lora_metadata=True)
        StableDiffusionPipeline.load_lora_into_unet(state, alphas, model.unet, metadata=metadata[0])
        with torch.no_grad():
            loss = model(**load_file(case.base / "batch.safetensors")).item()
        differences.append(first_loss_differs(case.run(1, "--adapter", case.trained), loss))
    return [("loaded by diffusers", max(differences), LOSS_LIMIT)]


def check_peft(case, name):
    """The loss that PEFT computes with the adapter that was saved here."""
    if name == "diffusion":
        return check_diffusers(case)
    if "exported" in case.expected:
        return []  # its base weights are not at hand
    try:
        import torch
        from make_adapters import CASES as builders, load_weights
        import make_quantised
        from peft import PeftModel
        from safetensors.torch import load_file
    except ImportError:
        return []
    if name == "quantised":
        wrapper, model = None, make_quantised.Net(make_quantised.onnx.load(case.model))
    else:
        build, wrapper, _, _ = builders[name]
        model = build()
        load_weights(model, case.model, case.expected["root"])
    adapted = PeftModel.from_pretrained(model, case.trained)
    with torch.no_grad():
        loss = (wrapper(adapted) if wrapper else adapted)(**load_file(case.base / "batch.safetensors")).item()
    return [("loaded by PEFT", first_loss_differs(case.run(1, "--adapter", case.trained), loss), LOSS_LIMIT)]


def check_dropout(case):
    """An export with dropout: no B has left zero, so that the first loss is known; the share goes into the file."""
    case.compile()
    case.run(1, "--save-adapter", case.trained)
    return []


def check(program, name, folder):
    case = Case(program, name, folder)
    if case.expected.get("dropout", 0) > NOTHING_DROPPED:
        checks = check_dropout(case) + check_config(case)
    else:
        checks = check_training(case) + check_config(case) + check_going_on(case)
    checks += check_merged(case) + check_peft(case, name)
    passed = all(math.isfinite(value) and value <= limit for _, value, limit in checks)
    return passed, ", ".join(f"{what} {value:.1e}" for what, value, _ in checks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    failed = 0
    names = args.cases or CASES
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                passed, text = check(args.program, name, folder)
            except (RuntimeError, OSError, ValueError, KeyError) as error:
                passed, text = False, f"{type(error).__name__}: {error}"
        failed += not passed
        print(f"{name:30} {'ok  ' if passed else 'FAIL'}  {text}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
