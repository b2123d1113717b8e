"""How texts of known models are answered, measured runs against stored traces: `python -m lab.known.score`.

For each kind of text: how many texts of library models were recognized, the peak's error, requests below the
need, and the sum of all requests over the sum of all needs. "by another name" counts texts that were
recognized as another model, which is right for those that print the same.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Dict, List

from lab.command import exit_code
from lab.ground_truth import TOOLS, load_ground_truth, real_mib
from lab.score.figures import Answer, figures
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.known.recognize import recognized
from slurm_gpumem.summaries.reader import read_summary


@dataclass(frozen=True)
class Scored(Answer):
    """One run, by one text."""

    key: str = ""
    known: str = ""
    """The model that it was recognized as; "" where it was not."""


def scored() -> Dict[str, List[Scored]]:
    """Runs of library models by kind of text."""
    truth = load_ground_truth()
    found: Dict[str, List[Scored]] = {tool: [] for tool in TOOLS}
    for run in truth.runs:
        if run.row["source"] in ("own", "repository"):
            continue
        for tool, text in truth.texts[run.summary].items():
            summary = read_summary(text)
            known = recognized(summary)
            if known is None:
                found[tool].append(Scored(1, 1, 1))
                continue
            answer = registry.run("auto", summary, run.job, run.gpu)
            name = known.name if answer.estimator == registry.TRACE else ""
            need = real_mib(run, summary)
            found[tool].append(Scored(need, answer.peak_mib, answer.request_mib, key=run.key, known=name))
    return found


def line(tool: str, rows: List[Scored]) -> str:
    """One kind of text."""
    hits = [row for row in rows if row.known]
    wrong = [row for row in hits if row.key.split("@")[0].replace("/", " ", 1) != row.known]
    if not hits:
        return f"{tool:15} {len(rows):5} runs, none recognized"
    one = figures(hits)
    return (
        f"{tool:15} {len(rows):5} runs {len(hits):5} recognized {len(wrong):4} by another name"
        f"  median {one.median_error:6.1%}  P90 {one.p90_error:6.1%}"
        f"  below need {one.under_request:5.1%}  requests/needs {one.capacity:.2f}"
    )


def main() -> int:
    """Print the table."""
    for tool, rows in scored().items():
        print(line(tool, rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
