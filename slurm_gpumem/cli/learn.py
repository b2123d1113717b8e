"""`gpumem learn`: refit the estimate's site layer from the site's own measured jobs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from slurm_gpumem.cli.run import say
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import ConfigError, NotLearnedError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.site_fit import (
    COVERAGE,
    Held,
    SiteRun,
    better,
    fit,
    held_out,
    in_force,
    shortage,
    usable,
)
from slurm_gpumem.estimators.site_layer import SiteLayer, layer_json, layer_path, load_layer
from slurm_gpumem.files import replaced
from slurm_gpumem.site.learn_runs import Found, read_runs

SCHEMA = "gpumem-learn/1"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    folders = args.records or list(load_accounting_config().folders)
    path = args.output or layer_path()
    found = read_runs(folders, registry.DEFAULT, _progress)
    runs = usable(found.runs)
    now = _current(path)
    if not args.json:
        print("\n".join(_read_lines(found, runs, folders)))
    missing = shortage(runs)
    if missing:
        raise NotLearnedError(f"{missing}.\nNothing was changed.")
    layer = fit(runs, registry.DEFAULT, args.coverage)
    was, will = in_force(runs, now), held_out(runs, registry.DEFAULT, args.coverage)
    worth = better(will, was, args.coverage)
    layer = layer._replace(card=_card(found, runs, was, will))
    if args.json:
        print(json.dumps(_as_json(layer, was, will, worth, path, dry=args.dry_run)))
    else:
        print("\n".join(_compared(was, will, now, layer)))
    if not worth:
        raise NotLearnedError(
            "what these runs teach is not better than what is in force on models that it has not seen.\n"
            "Nothing was changed."
        )
    if args.dry_run:
        say(f"--dry-run: {path} was not written")
        return 0
    kept = _write(path, layer)
    say(f"{path} written" + (f"; the one before is {kept}" if kept else ""))
    return 0


def _current(path: str) -> Optional[SiteLayer]:
    if not os.path.exists(path):
        return None
    try:
        return load_layer(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: is not used at present, and would be replaced unseen: {error}.\nMove it away first."
        ) from None


# -- Text ------------------------------------------------------------------------------------------


def _read_lines(found: Found, runs: List[SiteRun], folders: List[str]) -> List[str]:
    models = len({run.fingerprint for run in runs})
    censored = sum(run.censored for run in runs)
    lines = [
        f"{found.records:,} records in {', '.join(folders)}",
        f"{len(runs):,} usable jobs of {models:,} models, {censored:,} of them cut short "
        "(out of memory, failed or cancelled: they needed more than was seen)",
    ]
    strange = len(found.runs) - len(runs)
    left_out = {**found.left_out, **({"far from their estimate": strange} if strange else {})}
    if left_out:
        lines.append(
            "left out: "
            + ", ".join(f"{n:,} {why}" for why, n in sorted(left_out.items(), key=lambda i: -i[1]))
        )
    return lines


def _compared(was: Held, will: Held, now: Optional[SiteLayer], layer: SiteLayer) -> List[str]:
    lines = ["", f"{'':<10} {'jobs':>6}  median error  above request  kept in vain"]
    for name, held in (("in force", was), ("learned", will)):
        lines.append(
            f"{name:<10} {held.runs:>6,}  {held.median_error * 100:>10.1f} %  "
            f"{held.above_request * 100:>11.1f} %  {held.in_vain * 100:>10.1f} %"
        )
    lines += [
        "learned: each model by a fit that has not seen it; above request: each model weighs the same",
        "",
        f"peak {_percent(layer.offset)} for new models"
        + "".join(f", {_percent(value)} on {kind}" for kind, value in sorted(layer.gpus.items()))
        + f"; {len(layer.models):,} models with a term of their own",
        f"bound {layer.quantile:.2f} times as wide as the estimator's "
        f"({layer.known_quantile:.2f} for those models), meant to hold for {layer.coverage * 100:.3g} %",
    ]
    if now is None:
        lines.append("in force is the estimator as it came")
    return lines


def _percent(offset: float) -> str:
    from math import exp

    return f"{(exp(offset) - 1) * 100:+.1f} %"


def _card(found: Found, runs: List[SiteRun], was: Held, will: Held) -> Dict[str, Any]:
    return {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "records": found.records,
        "jobs": len(runs),
        "models": len({run.fingerprint for run in runs}),
        "before": {key: round(value, 4) for key, value in was._asdict().items()},
        "held_out": {key: round(value, 4) for key, value in will._asdict().items()},
    }


def _as_json(layer: SiteLayer, was: Held, will: Held, worth: bool, path: str, *, dry: bool) -> Dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": path,
        "better": worth,
        "written": worth and not dry,
        "in_force": was._asdict(),
        "learned": will._asdict(),
        "layer": layer._asdict(),
    }


def _progress(count: int) -> None:
    if count % 500 == 0 and sys.stderr.isatty():
        print(f"\r{count:,} records read\033[K\r", end="", file=sys.stderr, flush=True)


# -- Writing -----------------------------------------------------------------------------------------


def _write(path: str, layer: SiteLayer) -> Optional[str]:
    """Write the layer whole; the one before stays beside it under the next free number."""
    kept = None
    try:
        with replaced(Path(path), mode=0o644, durable=True) as draft:
            draft.write_text(layer_json(layer))
            if os.path.exists(path):
                kept = next(name for n in range(1, 10_000) if not os.path.exists(name := f"{path}.{n}"))
                os.link(path, kept)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}. Run it as root, or name another file with --output"
        ) from None
    return kept


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value <= 0.999:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0.5 to 0.999")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpumem learn", description=__doc__)
    parser.add_argument(
        "--records",
        action="append",
        metavar="DIR",
        help="folder of job records (repeatable; default: those of [accounting] and [node] in gpumem.toml)",
    )
    parser.add_argument("--output", metavar="FILE", help=f"the layer's file (default: {layer_path()})")
    parser.add_argument(
        "--coverage", type=_share, default=COVERAGE, help=f"share of jobs a request is to hold ({COVERAGE})"
    )
    parser.add_argument("--dry-run", action="store_true", help="compare and write nothing")
    parser.add_argument("--json", action="store_true", help="machine-readable, schema " + SCHEMA)
    return parser
