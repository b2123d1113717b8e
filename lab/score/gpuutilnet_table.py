"""GPUUtilNet as published (arXiv 2602.17817, Table 7): bins of three classes, accuracy and recall."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Tuple

METRICS: Mapping[str, str] = {"sm_active": "SMACT", "sm_occupancy": "SMOCC", "dram_active": "DRAMA"}
BUSY = 2
"""The class of the highest bin; its recall is what is published."""


class Published(NamedTuple):
    """One line of the table: edges of the bins in percent, and what the authors' ensembles reached."""

    edges: Tuple[float, float]
    accuracy: float
    recall: float


TABLE: Dict[Tuple[str, str], Published] = {
    ("MLP", "sm_active"): Published((20.0, 70.0), 0.92, 0.79),
    ("MLP", "sm_occupancy"): Published((10.0, 30.0), 0.94, 0.0),
    ("MLP", "dram_active"): Published((20.0, 70.0), 0.88, 0.27),
    ("CNN", "sm_active"): Published((30.0, 90.0), 0.77, 0.87),
    ("CNN", "sm_occupancy"): Published((10.0, 30.0), 0.71, 0.88),
    ("CNN", "dram_active"): Published((30.0, 90.0), 0.73, 0.88),
    ("Transformer", "sm_active"): Published((30.0, 80.0), 0.82, 0.89),
    ("Transformer", "sm_occupancy"): Published((30.0, 40.0), 0.68, 0.36),
    ("Transformer", "dram_active"): Published((30.0, 80.0), 0.62, 0.74),
}
_TRANSFORMERS = (
    "transformer",
    "causal-lm",
    "masked-lm",
    "text-encoder",
    "seq2seq",
    "audio",
    "image-text",
    "diffusion",
)
_MLPS = ("mlp", "recommender", "tabular", "graph", "points", "operator", "forecast", "recurrent")


def dataset_of(family: str) -> str:
    """Which of the three published data sets a family of models belongs to."""
    if any(word in family for word in _TRANSFORMERS):
        return "Transformer"
    return "MLP" if any(word in family for word in _MLPS) else "CNN"


def class_of(dataset: str, metric: str, percent: float) -> int:
    """0, 1 or BUSY by the bins of that data set and metric."""
    low, high = TABLE[dataset, metric].edges
    return BUSY if percent >= high else 1 if percent >= low else 0
