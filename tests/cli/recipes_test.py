#!/usr/bin/env python3
"""Runs the programs of examples/data on small inputs and looks at their files with `plimsoll data`.

Usage: recipes_test.py PLIMSOLL

Needs NumPy, and for data sets of Hugging Face the packages datasets and transformers; what is missing is named, and without NumPy nothing is
tested (exit code 77).
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data"
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def recipe(name, *arguments):
    done = subprocess.run([sys.executable, RECIPES / name, *map(str, arguments)], capture_output=True, text=True, env=OFFLINE)
    if done.returncode:
        sys.exit(f"recipes_test: {name}: {done.stdout}{done.stderr}")
    return done.stdout


def expect_seen(path, *texts):
    seen = subprocess.run([PROGRAM, "data", path], capture_output=True, text=True)
    for text in texts:
        if text not in seen.stdout:
            sys.exit(f"recipes_test: no '{text}' of {path.name} in: {seen.stdout}{seen.stderr}")


def table(folder):
    (folder / "table.csv").write_text("size,colour,kind\n1,red,cat\n2,blue,dog\n3,red,cat\n")
    text = recipe("from_csv.py", folder / "table.csv", folder / "table.safetensors", "--label", "kind")
    assert "0 is cat, 1 is dog" in text and "3 samples of 3 features" in text, text
    expect_seen(folder / "table.safetensors", "tensors: 3 samples", "labels  i64[] per sample: 0 to 1", "x       f32[3] per sample")


def texts(folder):
    (folder / "texts").mkdir()
    for name, text in (("a.txt", "one two"), ("b.txt", "three")):
        (folder / "texts" / name).write_text(text)
    text = recipe("from_texts.py", folder / "texts", folder / "tokens.bin")
    assert "2 documents, 14 tokens of 257; 256 ends a document" in text, text
    expect_seen(folder / "tokens.bin", "token numbers of 16 bits: 14, the largest is 256")


def hugging_face(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder / "tokenizer")
    (folder / "set").mkdir()
    (folder / "set" / "train.csv").write_text("text,label\ngood good film,1\nbad,0\ngood or bad,1\n")
    arguments = [folder / "set", "--tokenizer", folder / "tokenizer", "--length", "4"]
    recipe("from_hugging_face.py", *arguments[:1], folder / "padded", *arguments[1:])
    expect_seen(folder / "padded", "tensors: 3 samples", "attention_mask  i64[4] per sample: 0 to 1", "input_ids       i64[4] per sample: 0 to 3")
    recipe("from_hugging_face.py", *arguments[:1], folder / "ragged", *arguments[1:], "--no-padding", "--shard", "2")
    expect_seen(folder / "ragged", "tensors: 3 samples", "input_ids", "i64[] per element: 1 to 3 long, mean 2.333; 1 to 3", "labels")


def main():
    if not importlib.util.find_spec("numpy"):
        print("skipped: NumPy is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        table(folder)
        texts(folder)
        missing = [name for name in ("datasets", "transformers") if not importlib.util.find_spec(name)]
        if missing:
            print(f"skipped: from_hugging_face.py needs {' and '.join(missing)}")
        else:
            hugging_face(folder)
    print(f"{2 if missing else 3} programs of 3")


if __name__ == "__main__":
    main()
