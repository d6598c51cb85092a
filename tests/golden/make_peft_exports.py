#!/usr/bin/env python3
"""Write golden cases of exports that hold PEFT's adapters, as both of PyTorch's exporters write them.

Usage: make_peft_exports.py OUT_DIR [peft_exports] [dora_exports]

Needs torch, onnx, safetensors, transformers and peft. Everything runs on the CPU in float32, but for the base of what is named as mixed, which is bfloat16. Also packs the cases into
peft_exports.tar.xz and dora_exports.tar.xz: model.onnx, batch.safetensors, and the files that make_adapters.py describes. The
models are exported before their first step, with every B still zero, which exporters store once for all modules; those named
as drawn have other matrices and magnitudes then.
"""
import json
import pathlib
import sys
import tarfile

import torch
import transformers as T
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from check_adapters import NOTHING_DROPPED
from make_adapters import train_adapter


class Llama(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, labels):
        logits = self.m(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def llama():
    return T.LlamaForCausalLM(T.LlamaConfig(vocab_size=64, hidden_size=24, intermediate_size=40, num_hidden_layers=2, use_cache=False,
                              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)), Llama, {
        "input_ids": torch.randint(0, 64, (2, 8)), "labels": torch.randint(0, 64, (2, 8))}


def gpt2():
    return T.GPT2LMHeadModel(T.GPT2Config(vocab_size=64, n_positions=32, n_embd=24, n_layer=2, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0,
                             embd_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False)), Llama, {
        "input_ids": torch.randint(0, 64, (2, 8)), "labels": torch.randint(0, 64, (2, 8))}


class Net(torch.nn.Module):
    """A layer of each kind that has adapters."""

    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(11, 12)
        self.fc1 = torch.nn.Linear(12, 20)
        self.conv = torch.nn.Conv1d(1, 3, 3, padding=1)
        self.fc2 = torch.nn.Linear(60, 5, bias=False)

    def forward(self, ids):
        return self.fc2(self.conv(torch.relu(self.fc1(self.emb(ids))).unsqueeze(1)).flatten(1))


class Classifier(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, ids, labels):
        return torch.nn.functional.cross_entropy(self.m(ids), labels)


def net():
    return Net(), Classifier, {"ids": torch.randint(0, 11, (6,)), "labels": torch.randint(0, 5, (6,))}


class WideClassifier(Classifier):
    def forward(self, ids, labels):
        return torch.nn.functional.cross_entropy(self.m(ids).float(), labels)


def narrow_net():
    """Of 16 bits; PEFT's matrices are f32 all the same."""
    model, _, batch = net()
    return model.bfloat16(), WideClassifier, batch


ALL = ["emb", "fc1", "conv", "fc2"]
MIXED = dict(r=2, lora_alpha=3, target_modules=ALL, rank_pattern={"fc2": 4}, alpha_pattern={"conv": 5})
TORCHSCRIPT = dict(dynamo=False, do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING)
FOLDED = dict(dynamo=False, do_constant_folding=True, training=torch.onnx.TrainingMode.EVAL)
DYNAMO = dict(dynamo=True, external_data=False)
PLAIN = dict(DYNAMO, optimize=False)
DORA = dict(r=2, lora_alpha=3, use_dora=True, target_modules=["fc1", "fc2"], rank_pattern={"fc2": 4})
CASES = {
    "peft_llama": (llama, dict(r=4, lora_alpha=12, target_modules="all-linear", modules_to_save=["lm_head"]), DYNAMO),
    "peft_llama_dropout": (llama, dict(r=4, lora_alpha=4, lora_dropout=0.25, target_modules=["q_proj", "down_proj"]),
                           PLAIN),
    "peft_net": (net, MIXED, DYNAMO),
    "peft_net_torchscript": (net, dict(MIXED, modules_to_save=["conv"], target_modules=["emb", "fc1", "fc2"], alpha_pattern={}), TORCHSCRIPT),
    "peft_net_folded": (net, MIXED, FOLDED),
    "dora_llama_folded": (llama, dict(r=4, lora_alpha=12, use_dora=True, target_modules="all-linear"), DYNAMO),
    "dora_llama_dropout": (llama, dict(r=4, lora_alpha=4, use_dora=True, lora_dropout=0.25, target_modules=["q_proj", "down_proj"]), DYNAMO),
    "dora_gpt2_plain": (gpt2, dict(r=3, lora_alpha=6, use_dora=True, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True), PLAIN),
    "dora_net_drawn": (net, DORA, DYNAMO),
    "dora_net_mixed": (narrow_net, DORA, DYNAMO),
    "dora_net_dropout": (net, dict(DORA, lora_dropout=NOTHING_DROPPED), DYNAMO),
    "dora_net_torchscript": (net, dict(DORA, lora_dropout=NOTHING_DROPPED), TORCHSCRIPT),
    "dora_net_torchscript_drawn": (net, DORA, FOLDED),
}
ARCHIVES = {case: case.split("_")[0] + "_exports" for case in CASES}


def make(case, folder):
    build, settings, how = CASES[case]
    torch.manual_seed(3)
    model, wrapper, batch = build()
    adapted = get_peft_model(model, LoraConfig(**settings))
    if case.endswith("drawn"):
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data += 0.1 * torch.randn_like(parameter)
    whole = wrapper(adapted).train()
    folder.mkdir(parents=True)
    torch.onnx.export(whole, tuple(batch.values()), folder / "model.onnx" if how["dynamo"] else str(folder / "model.onnx"),
                      input_names=list(batch), output_names=["loss"], **how)
    save_file(batch, folder / "batch.safetensors")
    with torch.no_grad():
        frozen = whole(**batch).item()  # no B has left zero, so dropout changes nothing
    has_dropout = settings.get("lora_dropout", 0) > NOTHING_DROPPED
    expected = train_adapter(adapted, wrapper, batch, folder) if not has_dropout else {
        "losses": [frozen], "steps": 1, "optimizer": {"kind": "adamw", "lr": 0.01}}
    if has_dropout:
        adapted.save_pretrained(folder / "init")
        adapted.save_pretrained(folder / "after")
    for readme in folder.rglob("README.md"):
        readme.unlink()
    (folder / "expected.json").write_text(json.dumps({**expected, "options": [], "root": "m.base_model.model.", "exported": True,
                                                      "frozen_loss": frozen, "dropout": settings.get("lora_dropout", 0)}, indent=1))


def main():
    out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or sorted(set(ARCHIVES.values()))
    for name in wanted:
        with tarfile.open(pathlib.Path(__file__).parent / f"{name}.tar.xz", "w:xz") as archive:
            for case in (case for case in CASES if ARCHIVES[case] == name):
                make(case, out / case)
                archive.add(out / case, arcname=case)


if __name__ == "__main__":
    main()
