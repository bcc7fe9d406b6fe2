"""Writes heads of GGUF files, byte by byte: whole ones and broken ones."""

import struct


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def numbers(key: str, values: list[int]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def string(key: str, value: str) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def strings(key: str, values: list[str]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def head(*pairs: bytes) -> bytes:
    architecture = string("general.architecture", "llama")
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs) + 1) + architecture + b"".join(pairs)


PAIRS = [
    number("llama.context_length", 2048),
    number("llama.embedding_length", 64),
    number("llama.block_count", 3),
    number("llama.attention.head_count", 8),
    number("llama.attention.head_count_kv", 2),
]
