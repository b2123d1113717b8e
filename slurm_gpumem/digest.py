"""BLAKE2 without OpenSSL: `import hashlib` loads it first, which takes a quarter of a bare Python's start."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # an interpreter that has it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b", "name_of"]


def name_of(data: bytes) -> str:
    """32 letters and digits that stand for the data."""
    return blake2b(data, digest_size=16).hexdigest()
