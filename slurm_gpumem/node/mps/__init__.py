"""MPS on a node: its daemons and their folders, memory limits, and how clients leave it."""
