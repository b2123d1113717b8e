"""`gpumem estimate`: the estimate of one summary, for people or as JSON."""

from __future__ import annotations

import argparse
import json
from typing import List

from slurm_gpumem.api import estimate
from slurm_gpumem.sizes import ceil_div, format_mib

SCHEMA = "gpumem-estimate/1"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    result = estimate(
        args.summary,
        batch_size=args.batch_size,
        optimizer=args.optimizer,
        precision=args.precision,
        gpu=args.gpu,
        estimator=args.estimator,
    )
    shards = ceil_div(result.request_mib, 1024)
    if args.json:
        print(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "peak_mib": result.peak_mib,
                    "request_mib": result.request_mib,
                    "floor_mib": result.floor_mib,
                    "parts": dict(result.parts),
                    "estimator": result.estimator,
                    "gpu": result.gpu,
                    "shards": shards,
                    "warnings": list(result.warnings),
                }
            )
        )
        return 0
    print(f"peak {format_mib(result.peak_mib)}, request {format_mib(result.request_mib)} = {shards} shards")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpumem estimate", description=__doc__)
    parser.add_argument("summary", help="file with the text of a model summary")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--estimator", default="auto")
    parser.add_argument("--json", action="store_true")
    return parser
