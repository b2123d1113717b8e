"""What keeps a traced command from changing anything: deny by default, on the file systems that sites have.

    start (a program of its own) → private_world (namespaces, a private copy of what may be written)
                                 → restricted (Landlock and seccomp, where namespaces are not allowed)
                                 → nothing runs, where there is neither

Standard library only; `start.py` and what it imports run in whatever Python started the trace. `limits` and
`slots` are the side of the command that starts it.
"""
