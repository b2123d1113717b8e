"""Trace an unmodified training command: its own processes, without a GPU.

    run (parent) → guard (private copies) → the user's command → injected/sitecustomize → inside (after torch)

Every Python of the command loads `injected/sitecustomize.py`. When one of them imports torch, `inside`
makes "cuda" the traced device; the first process that takes optimizer steps is the one that is traced.
"""
