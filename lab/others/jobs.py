"""The measured jobs that every estimator answers for: small enough to be trained on a CPU."""

from __future__ import annotations

import random
from typing import List, Optional

from lab.ground_truth import GroundTruth, MeasuredRun, load_ground_truth

SOURCES = ("timm", "torchvision", "transformers")
EACH = 21
"""Jobs of each library, no two of one model."""
LEAST_MIB, MOST_MIB = 512, 1920
"""What they reserved: more than a CUDA context, and little enough that two steps on a core take a minute."""
PRECISIONS = ("fp32", "tf32")
"""What every estimator here was made for; on a CPU both are fp32."""
LEFT_OUT = ("granitemoe-small",)
"""Its experts take more than ten GiB on a CPU, which is more than was there."""


def chosen_jobs(truth: Optional[GroundTruth] = None) -> GroundTruth:
    """The jobs of the measured runs with their texts, the same ones at every call."""
    truth = truth or load_ground_truth()
    runs: List[MeasuredRun] = []
    for source in SOURCES:
        found = [run for run in truth.runs if run.row["source"] == source and _fits(run)]
        random.Random(source).shuffle(found)
        runs += list({str(run.row["model"]): run for run in reversed(found)}.values())[-EACH:]
    runs = [run for run in runs if not str(run.row["model"]).endswith(LEFT_OUT)]
    return GroundTruth(tuple(sorted(runs, key=lambda run: run.key)), truth.texts, {})


def _fits(run: MeasuredRun) -> bool:
    row = run.row
    # Detectors choose boxes by the values of weights, which nothing here has.
    plain = row["task"] != "detect" and not any(row["toggles"].values())
    return plain and row["precision"] in PRECISIONS and LEAST_MIB <= run.reserved_mib <= MOST_MIB
