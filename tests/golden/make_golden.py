#!/usr/bin/env python3
"""Write golden training cases: an exported ONNX model and what PyTorch computes when it trains it.

Usage: make_golden.py OUT_DIR [CASE ...]

Needs torch, onnx, onnxscript, safetensors, transformers, timm. Everything runs on the CPU in float32 with
dropout 0, so a correct trainer reproduces the numbers up to float32 rounding. Without a CASE it also packs the cases as
they are stored here, one archive per model.

Each case is one folder:
  model.onnx            the exported forward graph with its loss, and its initial weights inside
  batch.safetensors     one tensor per graph input
  grads.safetensors     d(loss)/d(initializer) at step 0, one tensor per trainable initializer, by initializer name
  after.safetensors     every parameter and buffer after STEPS optimizer steps on that same batch
  expected.json         losses before each step, optimizer settings, global gradient norm at step 0, exporter, opset
"""
import json
import os
import sys
import tarfile
import warnings

import onnx
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

from check_golden import CASES

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from torch_models import with_sinks

warnings.filterwarnings("ignore")
torch.set_num_threads(4)
STEPS = 5


class Classifier(nn.Module):
    """Image classifier with its cross-entropy loss inside, as people export for training."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, x, labels):
        return F.cross_entropy(self.m(x), labels)


class CausalLM(nn.Module):
    """Hugging Face causal language model; next-token labels are given, so no shift."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, labels):
        logits = self.m(input_ids=input_ids, use_cache=False).logits
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class PackedLM(CausalLM):
    """The same on rows of several documents, which positions tell apart."""

    def forward(self, input_ids, position_ids, labels):
        logits = self.m(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class TextClassifier(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, attention_mask, labels):
        return F.cross_entropy(self.m(input_ids=input_ids, attention_mask=attention_mask).logits, labels)


class TinyUNet(nn.Module):
    """Two-level U-Net for segmentation: strided conv, transposed conv, group norm, skip concat, dice + CE."""

    def __init__(self, c=8, classes=3):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())
        self.e1, self.d1 = block(3, c), nn.Conv2d(c, 2 * c, 2, stride=2)
        self.e2, self.d2 = block(2 * c, 2 * c), nn.Conv2d(2 * c, 4 * c, 2, stride=2)
        self.mid = block(4 * c, 4 * c)
        self.u2, self.b2 = nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2), block(4 * c, 2 * c)
        self.u1, self.b1 = nn.ConvTranspose2d(2 * c, c, 2, stride=2), block(2 * c, c)
        self.head = nn.Conv2d(c, classes, 1)

    def forward(self, x, mask):
        s1 = self.e1(x)
        s2 = self.e2(self.d1(s1))
        y = self.mid(self.d2(s2))
        y = self.b2(torch.cat([self.u2(y), s2], 1))
        y = self.b1(torch.cat([self.u1(y), s1], 1))
        logits = self.head(y)
        p = logits.softmax(1)[:, 1]
        t = (mask == 1).float()
        dice = 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
        return F.cross_entropy(logits, mask) + dice


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10))

    def forward(self, x, labels):
        return F.cross_entropy(self.net(x), labels)


class LSTMTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(50, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 7)

    def forward(self, ids, tags):
        return F.cross_entropy(self.out(self.rnn(self.emb(ids))[0]).reshape(-1, 7), tags.reshape(-1))


def lm_batch(b=2, s=32, v=512):
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, v, (b, s + 1), generator=g)
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def image_batch(b=4, r=32, c=10):
    g = torch.Generator().manual_seed(2)
    return {"x": torch.randn(b, 3, r, r, generator=g), "labels": torch.randint(0, c, (b,), generator=g)}


def cases():
    import timm
    import transformers as T

    nodrop = dict(attn_implementation="sdpa")
    gpt2 = lambda: CausalLM(T.GPT2LMHeadModel(T.GPT2Config(vocab_size=512, n_positions=64, n_embd=48, n_layer=2, n_head=4,
                            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0, **nodrop)))
    llama = lambda: CausalLM(T.LlamaForCausalLM(T.LlamaConfig(vocab_size=512, hidden_size=48, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, **nodrop)))
    bert = lambda: TextClassifier(T.BertForSequenceClassification(T.BertConfig(vocab_size=512, hidden_size=48, num_hidden_layers=2,
                                  num_attention_heads=4, intermediate_size=96, max_position_embeddings=64, hidden_dropout_prob=0.0,
                                  attention_probs_dropout_prob=0.0, **nodrop)))
    text = lambda: {"input_ids": lm_batch(b=3)["input_ids"], "attention_mask": (torch.arange(32)[None] < torch.tensor([[32], [20], [9]])).long(),
                    "labels": torch.tensor([0, 1, 0])}
    eager = dict(vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
                 bos_token_id=0, eos_token_id=0, pad_token_id=None, attn_implementation="eager")
    grouped = dict(eager, num_key_value_heads=2, head_dim=8)
    gemma2 = lambda: CausalLM(T.Gemma2ForCausalLM(T.Gemma2Config(**grouped, query_pre_attn_scalar=8, sliding_window=9, attn_logit_softcapping=0.5)))
    bloom = lambda: CausalLM(T.BloomForCausalLM(T.BloomConfig(vocab_size=128, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0,
                                                             attention_dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0)))
    gpt_oss = lambda: CausalLM(with_sinks(T.GptOssForCausalLM(T.GptOssConfig(
        **grouped, sliding_window=9, layer_types=["sliding_attention", "full_attention"], num_local_experts=2, num_experts_per_tok=1))))
    packed = lambda: PackedLM(T.LlamaForCausalLM(T.LlamaConfig(**dict(grouped, attn_implementation="sdpa"))))
    small = lambda: lm_batch(v=128)
    documents = lambda: {"input_ids": small()["input_ids"], "labels": small()["labels"], "position_ids": torch.stack(
        [torch.cat([torch.arange(n) for n in lengths]) for lengths in ([5, 20, 7], [32])])}
    in_order = lambda batch: {name: batch[name] for name in ("input_ids", "position_ids", "labels")}
    g = torch.Generator().manual_seed(3)
    return {
        # name: (model, batch, exporter, opset, optimizer)
        "mlp": (MLP, lambda: {"x": torch.randn(8, 64, generator=g), "labels": torch.arange(8) % 10}, "dynamo", 20, "sgd"),
        "gpt2": (gpt2, lm_batch, "dynamo", 20, "adamw"),
        "gpt2_opset23": (gpt2, lm_batch, "dynamo", 23, "adamw"),
        "llama_gqa": (llama, lm_batch, "dynamo", 20, "adamw"),
        "gemma2": (gemma2, small, "dynamo", 20, "adamw"),
        "bloom": (bloom, small, "dynamo", 20, "adamw"),
        "gpt_oss": (gpt_oss, small, "dynamo", 20, "adamw"),
        "llama_packed": (packed, lambda: in_order(documents()), "dynamo", 20, "adamw"),
        "bert_classifier": (bert, text, "dynamo", 20, "adamw"),
        "bert_classifier_torchscript": (bert, text, "torchscript", 17, "adamw"),
        "resnet": (lambda: Classifier(timm.create_model("test_resnet", num_classes=10)), image_batch, "dynamo", 20, "momentum"),
        "resnet_torchscript": (lambda: Classifier(timm.create_model("test_resnet", num_classes=10)), image_batch, "torchscript", 17, "momentum"),
        "vit": (lambda: Classifier(timm.create_model("test_vit", num_classes=10, img_size=32)), image_batch, "dynamo", 20, "adamw_clip"),
        "unet": (TinyUNet, lambda: {"x": image_batch(2, 32)["x"], "mask": torch.randint(0, 3, (2, 32, 32), generator=torch.Generator().manual_seed(4))},
                 "dynamo", 20, "adamw"),
        "lstm": (LSTMTagger, lambda: {"ids": torch.randint(0, 50, (3, 11), generator=torch.Generator().manual_seed(5)),
                                      "tags": torch.randint(0, 7, (3, 11), generator=torch.Generator().manual_seed(6))}, "torchscript", 17, "sgd"),
    }


OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), dict(kind="sgd", lr=0.1)),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
                 dict(kind="sgd", lr=0.05, momentum=0.9, weight_decay=1e-4)),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
              dict(kind="adamw", lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)),
    "adamw_clip": (lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
                   dict(kind="adamw", lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_grad_norm=0.5)),
}


def export(model, batch, path, exporter, opset):
    names = list(batch)
    args = tuple(batch.values())
    if exporter == "dynamo":
        torch.onnx.export(model, args, path, dynamo=True, external_data=False, optimize=False, opset_version=opset,
                          input_names=names, output_names=["loss"], verbose=False)
    else:
        torch.onnx.export(model, args, path, dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                          opset_version=opset, input_names=names, output_names=["loss"],
                          dynamic_axes={n: {0: "batch"} for n in names}, verbose=False)


def settle(path, state, packages=(torch,)):
    """Restores batch-norm statistics that tracing changed, and removes folders of this machine from the file."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name in state:
            tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name].numpy(), tensor.name))
    roots = [os.path.dirname(os.path.abspath(__file__)) + os.sep]
    roots += [os.path.dirname(os.path.dirname(os.path.abspath(package.__file__))) + os.sep for package in packages]
    for part in (model, model.graph, *model.graph.node, *model.graph.initializer):
        for root in roots:
            part.doc_string = part.doc_string.replace(root, "")
            for entry in part.metadata_props:
                entry.value = entry.value.replace(root, "")
    onnx.save(model, path)


def unique(named):
    """Drop shared tensors (tied weights) so that safetensors accepts them; the first name wins."""
    seen, out = set(), {}
    for name, t in named:
        if t.data_ptr() not in seen or t.numel() == 0:
            seen.add(t.data_ptr())
            out[name] = t.detach().clone().contiguous()
    return out


def write(name, out):
    make, batch_of, exporter, opset, opt_name = cases()[name]
    torch.manual_seed(0)
    model, batch = make(), batch_of()
    model.train()
    d = os.path.join(out, name)
    os.makedirs(d, exist_ok=True)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    export(model, batch, os.path.join(d, "model.onnx"), exporter, opset)
    settle(os.path.join(d, "model.onnx"), state)
    model.load_state_dict(state)
    model.train()
    save_file(batch, os.path.join(d, "batch.safetensors"))
    make_opt, settings = OPTIMIZERS[opt_name]
    opt = make_opt(model.parameters())
    losses, norm = [], None
    for step in range(STEPS):
        opt.zero_grad()
        loss = model(*batch.values())
        loss.backward()
        losses.append(loss.item())
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if step == 0:
            norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item()
            save_file(unique((n, p.grad) for n, p in model.named_parameters() if p.grad is not None),
                      os.path.join(d, "grads.safetensors"))
        if "clip_grad_norm" in settings:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_grad_norm"])
        opt.step()
    save_file(unique(list(model.named_parameters()) + list(model.named_buffers())), os.path.join(d, "after.safetensors"))
    tied = {}
    for n, p in model.named_parameters(remove_duplicate=False):
        tied.setdefault(p.data_ptr(), []).append(n)
    json.dump(dict(case=name, steps=STEPS, losses=losses, grad_norm_step0=norm, optimizer=settings, exporter=exporter, opset=opset,
                   torch=torch.__version__, tied=[v for v in tied.values() if len(v) > 1]),
              open(os.path.join(d, "expected.json"), "w"), indent=1)
    print(name, "ok", [round(x, 5) for x in losses], "grad norm", round(norm, 5), flush=True)


def pack(out):
    def anonymous(member):
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    archives = {}
    for case, archive in CASES.items():
        archives.setdefault(archive, []).append(case)
    for archive, names in archives.items():
        with tarfile.open(os.path.join(out, archive + ".tar.xz"), "w:xz", preset=9) as file:
            for case in names:
                for entry in sorted(os.listdir(os.path.join(out, case))):
                    file.add(os.path.join(out, case, entry), f"{case}/{entry}", filter=anonymous)


if __name__ == "__main__":
    out, wanted = sys.argv[1], sys.argv[2:]
    failed = 0
    for name in wanted or list(cases()):
        try:
            write(name, out)
        except Exception as e:  # one exporter's failure must not hide the rest
            failed += 1
            print(name, "FAILED", repr(e)[:400].replace("\n", " "), flush=True)
    if not wanted and not failed:
        pack(out)
    sys.exit(1 if failed else 0)
