"""A stable name for a model's architecture, whatever the batch size and the layout of its summary."""

from __future__ import annotations

from slurm_gpumem.summaries.types import ModelSummary

_VERSION = "1"


def fingerprint(summary: ModelSummary) -> str:
    """Hash kind, parameters and per-sample output sizes of every leaf, in order."""
    import hashlib  # here, because loading it costs more than parsing most summaries

    digest = hashlib.sha256(_VERSION.encode())
    for layer in summary.layers:
        if not layer.leaf:
            continue
        sizes = ",".join(str(summary.elements(shape, 1)) for shape in layer.outputs)
        row = f"{layer.kind}|{layer.params}|{int(layer.repeated)}|{sizes}\n"
        digest.update(row.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]
