#!/usr/bin/env python3
"""Write golden cases of adapters: what PEFT trains beside the frozen weights of a golden model.

Usage: make_adapters.py OUT_DIR [adapters] [dora]

Needs torch, onnx, safetensors, transformers and peft; make_golden.py has the models, and the archives here their weights.
Everything runs on the CPU in float32 without dropout. Also packs the cases into adapters.tar.xz
and dora.tar.xz.

Each case is one folder:
  init/                 the adapter before the first step, as PEFT saves it; B is drawn too, so that A has a gradient
  after/                the adapter after STEPS steps of AdamW
  grads.safetensors     d(loss)/d(matrix) at step 0, by the key in the adapter's file
  expected.json         losses before each step, the options of the adapter and of the optimizer
"""
import json
import pathlib
import sys
import tarfile
import tempfile

import onnx
import torch
import transformers as T
from onnx import numpy_helper
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from check_golden import unpack
from make_golden import CausalLM, TinyUNet

STEPS = 5
OPTIMIZER = {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def llama():
    return T.LlamaForCausalLM(T.LlamaConfig(vocab_size=512, hidden_size=48, intermediate_size=128, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))


def gpt2():
    return T.GPT2LMHeadModel(T.GPT2Config(vocab_size=512, n_positions=64, n_embd=48, n_layer=2, n_head=4, attn_pdrop=0.0,
                             resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0))


CASES = {
    # case of make_golden.py: the model, whether a wrapper computes the loss, PEFT's settings, options of plimsoll
    "llama_gqa": (llama, CausalLM, dict(r=4, lora_alpha=8, target_modules=r".*(_proj|embed_tokens)"),
                  ["--lora-rank", "4", "--lora-alpha", "8", "--lora-targets", "all-linear", "--lora-targets", "embed_tokens"]),
    "gpt2": (gpt2, CausalLM, dict(r=3, lora_alpha=6, use_rslora=True, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True),
             ["--lora-rank", "3", "--lora-alpha", "6", "--rslora", "--lora-targets", "c_attn", "--lora-targets", "c_fc"]),
    "unet": (TinyUNet, None, dict(r=2, lora_alpha=3, target_modules=r"e1\.0|d1|d2|mid\.0|head"),
             ["--lora-rank", "2", "--lora-alpha", "3", "--lora-targets", r"e1\.0|d1|d2|mid\.0", "--lora-targets", "head"]),
    "dora_llama": (llama, CausalLM, dict(r=4, lora_alpha=8, use_dora=True, target_modules=r".*_proj"),
                   ["--lora-rank", "4", "--lora-alpha", "8", "--dora"]),
    "dora_gpt2": (gpt2, CausalLM, dict(r=3, lora_alpha=6, use_dora=True, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True),
                  ["--lora-rank", "3", "--lora-alpha", "6", "--dora", "--lora-targets", "c_attn", "--lora-targets", "c_fc"]),
}
# Which cases of make_golden.py have the models of others than their own name, and which archives the cases are in.
MODELS = {"dora_llama": "llama_gqa", "dora_gpt2": "gpt2"}
ARCHIVES = {case: "dora" if case.startswith("dora_") else "adapters" for case in CASES}


def load_weights(model, path, prefix):
    """The initializers of an export, which have the names of the parameters behind a wrapper's prefix."""
    values = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in onnx.load(path).graph.initializer}
    state = model.state_dict()
    tied = {"transformer.wte.weight": "lm_head.weight", "lm_head.weight": "transformer.wte.weight"}
    for name in state:
        for key in (prefix + name, prefix + tied.get(name, name)):
            if key in values and values[key].shape == state[name].shape:
                state[name] = values[key]
                break
        else:
            if not name.endswith(("num_batches_tracked", "attn.bias", "attn.masked_bias", "inv_freq")):
                raise SystemExit(f"{path} has no {name}")
    model.load_state_dict(state)


def key_of(name):
    """What PEFT's files call a parameter."""
    name = name.replace(".modules_to_save.default", "").replace(".default", "")
    return name.replace(".lora_magnitude_vector.weight", ".lora_magnitude_vector")


def train_adapter(adapted, wrapper, batch, folder):
    """Writes init/, after/ and grads.safetensors into the folder, and returns what expected.json says of them."""
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name or "lora_embedding_A" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    adapted.save_pretrained(folder / "init")
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    loss_of = wrapper(adapted) if wrapper else adapted
    optimizer = torch.optim.AdamW(trained.values(), lr=OPTIMIZER["lr"], weight_decay=OPTIMIZER["weight_decay"])
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(**batch)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            save_file({key_of(name): p.grad.contiguous() for name, p in trained.items()}, folder / "grads.safetensors")
        optimizer.step()
    adapted.save_pretrained(folder / "after")
    for readme in folder.rglob("README.md"):
        readme.unlink()
    print(folder.name, len(trained), "matrices, losses", losses)
    return {"losses": losses, "steps": STEPS, "optimizer": OPTIMIZER}


def make(case, folder):
    build, wrapper, settings, options = CASES[case]
    with tempfile.TemporaryDirectory() as base:
        golden = unpack(MODELS.get(case, case), base)
        model = build()
        load_weights(model, golden / "model.onnx", "m." if wrapper else "")
        batch = load_file(golden / "batch.safetensors")
    torch.manual_seed(7)
    expected = train_adapter(get_peft_model(model, LoraConfig(**settings)), wrapper, batch, folder)
    (folder / "expected.json").write_text(json.dumps({**expected, "options": options, "root": "m." if wrapper else ""}, indent=1))


def main():
    out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or sorted(set(ARCHIVES.values()))
    for name in wanted:
        with tarfile.open(pathlib.Path(__file__).parent / f"{name}.tar.xz", "w:xz") as archive:
            for case in (case for case in CASES if ARCHIVES[case] == name):
                make(case, out / case)
                archive.add(out / case, arcname=case)


if __name__ == "__main__":
    main()
