#!/usr/bin/env python3
"""Write a text as a token file: one unsigned 16-bit number per character, little endian. Needs Python alone.

Usage: make_tokens.py moby_dick.txt tokens.bin
"""
import array
import sys


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="ascii") as file:
        tokens = array.array("H", map(ord, file.read()))
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(target, "wb") as file:
        tokens.tofile(file)
    print(f"{target}: {len(tokens)} tokens, the largest is {max(tokens)}")


if __name__ == "__main__":
    main()
