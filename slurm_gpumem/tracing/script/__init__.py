"""Trace an unmodified training command: its own processes, without a GPU.

    run (parent) → guard (private copies) → the user's command → injected/sitecustomize → tracer (after torch)

Every Python of the command loads `injected/sitecustomize.py`. When one of them imports torch, `tracer`
makes "cuda" the traced device; the first process that takes optimizer steps is the one that is traced.
"""
