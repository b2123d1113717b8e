"""Estimators of other people beside ours, on the same measured jobs."""
