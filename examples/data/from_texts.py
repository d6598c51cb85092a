#!/usr/bin/env python3
"""Turns a folder of .txt files into a file of token numbers, with a token that ends each document.

Usage: from_texts.py FOLDER OUT [--tokenizer TOKENIZER.json]

Without a tokenizer a token is a byte of the text, and 256 ends a document. With one (a file of the package `tokenizers`, as
every fast tokenizer of Hugging Face has it) its own end of text ends a document. Numbers are 16 bits wide, and 32 if the
vocabulary is larger, which .u32 in OUT says.
"""
import argparse
import pathlib
import sys

import numpy

ENDS = ["<|endoftext|>", "</s>", "<|end_of_text|>", "[SEP]", "<eos>"]


def open_tokenizer(path):
    """How to encode a text, the number that ends a document, and how many numbers there are."""
    if not path:
        return lambda text: list(text.encode()), 256, 257
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    ends = [number for number in map(tokenizer.token_to_id, ENDS) if number is not None]
    if not ends:
        sys.exit(f"{path}: has none of {', '.join(ENDS)}")
    return lambda text: tokenizer.encode(text).ids, ends[0], tokenizer.get_vocab_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out")
    parser.add_argument("--tokenizer")
    args = parser.parse_args()
    encode, end, vocabulary = open_tokenizer(args.tokenizer)
    wide = vocabulary > 1 << 16
    if wide and ".u32" not in args.out:
        sys.exit(f"{vocabulary} tokens need 32 bits: name the file {args.out}.u32")
    texts = sorted(args.folder.rglob("*.txt"))
    if not texts:
        sys.exit(f"{args.folder}: has no .txt files")
    count = 0
    with open(args.out, "wb") as out:
        for text in texts:
            tokens = encode(text.read_text(encoding="utf-8", errors="replace")) + [end]
            out.write(numpy.array(tokens, "<u4" if wide or ".u32" in args.out else "<u2").tobytes())
            count += len(tokens)
    print(f"{args.out}: {len(texts)} documents, {count} tokens of {vocabulary}; {end} ends a document")


if __name__ == "__main__":
    main()
