#!/usr/bin/env python3
"""Trains three tasks with PyTorch and with Plimsoll by one recipe each, from the same first values, and compares what the trained models can do.

Usage: same_accuracy.py PLIMSOLL [digits] [bert] [gpt] [--seeds 3] [--folder DIR] [--device cpu] [--markdown FILE]

digits: 1,797 images of handwritten digits (they come with scikit-learn) as PNG files in a folder for each class; a small convolutional net with
        batch norm and dropout, random crops, SGD with Nesterov momentum, cosine schedule with warm-up.
bert:   sentences of 8 to 32 made-up words, padded to 32, with a mask; the label says which of two words comes first. A BERT of two layers with dropout,
        AdamW without decay of norms and biases, linear schedule with warm-up, clipped gradients.
gpt:    the quickstart's text as characters; a GPT-2 of two layers with dropout, whose export shifts the labels itself. The last tenth of the text
        is evaluated.

For each seed PyTorch draws the model, which is exported; both train from its values, each in its own order of samples and with its own dropout. The
last column says whether the two means differ by less than the seeds of PyTorch do. Needs torch, transformers, scikit-learn, Pillow, safetensors, onnx
and onnxscript. `--folder` keeps the files; every command of Plimsoll is printed.
"""
import argparse
import json
import math
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

QUICKSTART = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "quickstart"


def cosine(update, steps, warmup):
    return update / warmup if update < warmup else 0.5 * (1 + math.cos(math.pi * (update - warmup) / (steps - warmup)))


def linear(update, steps, warmup):
    return update / warmup if update < warmup else (steps - update) / (steps - warmup)


class Task:
    """A task says how both sides train: `recipe` holds the options of compile and run that PyTorch's side has as code."""
    metric = "accuracy"
    batch, epochs, warmup, lr, decay, clip = 32, 10, 20, 1e-3, 0.01, 0.0
    schedule, schedule_name = staticmethod(linear), "linear"
    transforms = None

    def steps(self):
        return self.epochs * (len(self.train) // self.batch)

    def optimizer(self, model):
        apart = [[p for p in model.parameters() if p.dim() >= 2], [p for p in model.parameters() if p.dim() < 2]]
        return torch.optim.AdamW([{"params": apart[0], "weight_decay": self.decay}, {"params": apart[1], "weight_decay": 0.0}], lr=self.lr)

    def recipe(self):
        return ["--optimizer", "adamw", "--weight-decay", str(self.decay), "--no-decay", "norms-and-biases"]

    def shown(self, batch):
        return batch


class Digits(Task):
    batch, epochs, warmup, lr, decay = 64, 10, 25, 0.05, 5e-4
    schedule, schedule_name = staticmethod(cosine), "cosine"

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layers = []
            for before, after in ((1, 24), (24, 48), (48, 48)):
                layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            self.features, self.dropout, self.head = nn.Sequential(*layers), nn.Dropout(0.2), nn.Linear(48 * 4, 10)

        def forward(self, image, label):
            rows = F.max_pool2d(self.features(image), 4).flatten(1)
            return F.cross_entropy(self.head(self.dropout(rows)), label)

        def logits(self, image, **_):
            return self.head(F.max_pool2d(self.features(image), 4).flatten(1))

    def __init__(self, folder):
        from PIL import Image
        from sklearn.datasets import load_digits
        digits = load_digits()
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        order = np.random.default_rng(0).permutation(len(images))
        sets = {"train": order[:1400], "test": order[1400:]}
        for name, rows in sets.items():
            for row in rows:
                path = folder / name / str(digits.target[row]) / f"{row:04}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(images[row]).save(path)
        (folder / "transforms.toml").write_text('[transforms]\ncrop = "random"\nresize = 10\nmean = [0.5]\nstd = [0.25]\n')
        self.train, self.test = [[(images[row], int(digits.target[row])) for row in sets[name]] for name in ("train", "test")]
        self.train_path, self.test_path, self.transforms = folder / "train", folder / "test", folder / "transforms.toml"

    def build(self):
        return self.Net()

    def tensors(self, samples):
        images = torch.stack([torch.from_numpy(image) for image, _ in samples])[:, None].float() / 255
        return {"image": images, "label": torch.tensor([label for _, label in samples])}

    def shown(self, batch):  # as Resize(10) and RandomCrop(8), or CenterCrop(8)
        large = F.interpolate(batch["image"], size=10, mode="bilinear", antialias=True)
        at = torch.randint(0, 3, (len(large), 2)) if self.training else torch.ones(len(large), 2, dtype=torch.int64)
        crops = torch.stack([image[:, y:y + 8, x:x + 8] for image, (y, x) in zip(large, at.tolist())])
        return {"image": (crops - 0.5) / 0.25, "label": batch["label"]}

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9, nesterov=True, weight_decay=self.decay)

    def recipe(self):
        return ["--optimizer", "sgd", "--momentum", "0.9", "--nesterov", "--weight-decay", str(self.decay)]


class Bert(Task):
    batch, epochs, warmup, lr, clip = 32, 6, 50, 1e-3, 1.0
    words, length, first, second = 60, 32, 5, 6

    class Net(nn.Module):
        def __init__(self, words, length):
            super().__init__()
            import transformers
            config = transformers.BertConfig(vocab_size=words, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                                             max_position_embeddings=length, num_labels=2, attn_implementation="sdpa")
            self.m = transformers.BertForSequenceClassification(config)

        def forward(self, input_ids, attention_mask, labels):
            return F.cross_entropy(self.m(input_ids=input_ids, attention_mask=attention_mask).logits, labels)

        def logits(self, input_ids, attention_mask, **_):
            return self.m(input_ids=input_ids, attention_mask=attention_mask).logits

    def __init__(self, folder):
        import safetensors.torch
        random = np.random.default_rng(0)
        samples = [self.sentence(random) for _ in range(5000)]
        self.train, self.test = samples[:4000], samples[4000:]
        self.train_path, self.test_path = folder / "train.safetensors", folder / "test.safetensors"
        for samples, path in ((self.train, self.train_path), (self.test, self.test_path)):  # Plimsoll pads, and makes the mask
            safetensors.torch.save_file({"input_ids": torch.from_numpy(np.concatenate([ids[:length] for ids, length, _ in samples])),
                                         "lengths": torch.tensor([length for _, length, _ in samples]),
                                         "labels": torch.tensor([label for _, _, label in samples])}, path)

    def sentence(self, random):
        length = int(random.integers(8, self.length + 1))
        ids = random.integers(7, self.words, length)
        at = random.choice(length, 2, replace=False)
        ids[at[0]], ids[at[1]] = self.first, self.second
        return np.pad(ids, (0, self.length - length)), length, int(at[0] < at[1])

    def tensors(self, samples):
        mask = torch.tensor([[1] * length + [0] * (self.length - length) for _, length, _ in samples])
        return {"input_ids": torch.from_numpy(np.stack([ids for ids, _, _ in samples])), "attention_mask": mask,
                "labels": torch.tensor([label for _, _, label in samples])}

    def build(self):
        return self.Net(self.words, self.length)


class Gpt(Task):
    metric = "perplexity"
    batch, epochs, warmup, lr, decay, clip = 16, 3, 60, 2e-3, 0.1, 1.0
    length = 64

    class Net(nn.Module):
        def __init__(self, length):
            super().__init__()
            import transformers
            config = transformers.GPT2Config(vocab_size=128, n_positions=length, n_embd=64, n_layer=2, n_head=4, attn_implementation="sdpa")
            self.m = transformers.GPT2LMHeadModel(config)

        def forward(self, input_ids, labels):
            return self.m(input_ids=input_ids, labels=labels).loss

    def __init__(self, folder):
        tokens = np.fromfile(QUICKSTART / "tokens.bin", dtype="<u2")
        cut = len(tokens) * 9 // 10
        self.train_path, self.test_path = folder / "train.bin", folder / "test.bin"
        tokens[:cut].tofile(self.train_path)
        tokens[cut:].tofile(self.test_path)
        windows = [part[:len(part) // self.length * self.length].reshape(-1, self.length).astype(np.int64) for part in (tokens[:cut], tokens[cut:])]
        self.train, self.test = list(windows[0]), list(windows[1])

    def tensors(self, samples):
        ids = torch.from_numpy(np.stack(samples))
        return {"input_ids": ids, "labels": ids}

    def build(self):
        return self.Net(self.length)


TASKS = {"digits": Digits, "bert": Bert, "gpt": Gpt}


def train_torch(task, model, seed):
    """Returns the metric on the test samples."""
    torch.manual_seed(1000 + seed)
    optimizer, steps = task.optimizer(model), task.steps()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: task.schedule(update, steps, task.warmup))
    model.train()
    task.training = True
    for _ in range(task.epochs):
        order = torch.randperm(len(task.train)).tolist()
        for at in range(0, len(order) - task.batch + 1, task.batch):
            inputs = task.shown(task.tensors([task.train[i] for i in order[at:at + task.batch]]))
            loss = model(**inputs)
            optimizer.zero_grad()
            loss.backward()
            if task.clip:
                nn.utils.clip_grad_norm_(model.parameters(), task.clip)
            optimizer.step()
            schedule.step()
    model.eval()
    task.training = False
    with torch.no_grad():
        if task.metric == "perplexity":
            losses = [(model(**task.tensors(task.test[at:at + task.batch])).item(), len(task.test[at:at + task.batch])) for at in range(0, len(task.test), task.batch)]
            return math.exp(sum(loss * count for loss, count in losses) / len(task.test))
        inputs = task.shown(task.tensors(task.test))
        labels = inputs.get("labels", inputs.get("label"))
        return (model.logits(**inputs).argmax(1) == labels).double().mean().item()


def train_ours(args, task, folder, seed):
    plan, metrics = folder / f"{seed}.plan", folder / f"{seed}.jsonl"
    compile_command = [args.program, "compile", folder / f"{seed}.onnx", "-o", plan, "--device", args.device, "--lr", task.lr, *task.recipe(),
                       "--metric", task.metric] + (["--clip-grad-norm", task.clip] if task.clip else [])
    run_command = [args.program, "run", plan, "--weights", folder / f"{seed}.onnx", "--data", task.train_path, "--epochs", task.epochs, "--seed", seed,
                   "--lr-schedule", task.schedule_name, "--warmup", task.warmup, "--evaluate-data", task.test_path,
                   "--metrics", metrics] + (["--transforms", task.transforms] if task.transforms else [])
    for command in (compile_command, run_command):
        command = list(map(str, command))
        print("$ " + shlex.join(command), file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record["evaluation"] for record in records if "evaluation" in record][-1][task.metric]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the models are small: its threads would wait for each other
    lines = ["| task | metric | PyTorch | Plimsoll | means differ by | PyTorch's seeds by | |", "|---|---|---|---|---|---|---|"]
    apart = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.tasks or TASKS:
            folder = (args.folder or pathlib.Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            task = TASKS[name](folder)
            theirs, ours = [], []
            for seed in range(1, args.seeds + 1):
                torch.manual_seed(seed)
                model = task.build().train()
                task.training = True
                inputs = task.shown(task.tensors(task.train[:task.batch]))
                torch.onnx.export(model, tuple(inputs.values()), folder / f"{seed}.onnx", dynamo=True, optimize=False, opset_version=20,
                                  input_names=list(inputs), output_names=["loss"], external_data=False, verbose=False)
                ours.append(train_ours(args, task, folder, seed))
                theirs.append(train_torch(task, model, seed))
            difference, spread = abs(statistics.mean(ours) - statistics.mean(theirs)), max(theirs) - min(theirs)
            verdict = "" if args.seeds == 1 else "less" if difference <= spread else "more"  # one seed has no spread
            apart += verdict == "more"
            shown = [", ".join(f"{value:.4f}" for value in side) for side in (theirs, ours)]
            lines.append(f"| {name} | {task.metric} | {shown[0]} | {shown[1]} | {difference:.4f} | {spread:.4f} | {verdict} |")
            print(lines[-1], flush=True)
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")
    sys.exit(1 if apart else 0)


if __name__ == "__main__":
    main()
