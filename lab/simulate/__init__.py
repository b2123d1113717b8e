"""Policies compared on a trace of jobs: `python -m lab.simulate` (lab/docs/simulate.md)."""
