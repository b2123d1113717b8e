"""Explain the peak of a traced step: what was alive then, over time, and what would lower it."""
