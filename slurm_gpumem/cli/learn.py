"""`gpumem learn`: fit the site's own layer over text and trace estimates from its measured jobs."""

from __future__ import annotations

import argparse
import json
import os
from math import exp
from typing import Any, Dict, List, Mapping, Optional, Sequence

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import NotLearnedError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.site_contexts import LearnedContext, contexts_learned
from slurm_gpumem.estimators.site_fit import COVERAGE, SiteRun, usable
from slurm_gpumem.estimators.site_layer import SiteLayer, layer_path
from slurm_gpumem.site.learn import Learned, current_layers, learn, with_reported, write_layers
from slurm_gpumem.site.learn_runs import LearnableRuns, read_runs
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say

SCHEMA = "gpumem-learn/2"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    for folder in args.records or ():
        if not os.path.isdir(folder):
            raise UsageError(f"{folder}: is no folder; --records names one with job records")
    folders = args.records or list(load_accounting_config().folders)
    path = args.output or layer_path()
    with StatusLine() as line:
        # Every 500 records: a line for each would take longer than reading them.
        found = read_runs(folders, registry.LEARNT, lambda n: line(f"{n - n % 500:,} records read"))
    runs = {estimator: usable(own) for estimator, own in found.runs.items()}
    now = current_layers(path)
    if not args.json:
        print("\n".join(_read_lines(found, runs, folders)))
    contexts = contexts_learned(found.contexts)
    learned = learn(found, runs, now, args.coverage, contexts)
    gained = {one.layer.estimator: one.layer for one in learned if one.better}
    reported = with_reported(registry.LEARNT, {**now, **gained}, contexts)
    gained.update(reported)
    if args.json:
        print(json.dumps(_as_json(learned, path, contexts if reported else {}, dry=args.dry_run)))
    else:
        for one in learned:
            print("\n".join(_compared(one, now.get(one.layer.estimator))))
        if reported:
            print("\n".join(_reported_lines(contexts)))
    if not gained:
        raise NotLearnedError(
            "what these runs teach is not better than what is in force on models that it has not seen.\n"
            "Nothing was changed."
        )
    if args.dry_run:
        say(f"--dry-run: {path} was not written")
        return 0
    kept = write_layers(path, {**now, **gained}.values())
    say(f"{path} written for {' and '.join(gained)}" + (f"; the one before is {kept}" if kept else ""))
    if any(layer.constant or layer.constants for layer in gained.values()):
        say("memory lines in scripts of plain sbatch follow after gpumem setup wrote gpumem_site.lua again")
    return 0


def _read_lines(found: LearnableRuns, runs: Mapping[str, List[SiteRun]], folders: List[str]) -> List[str]:
    lines = [f"{found.records:,} records in {', '.join(folders)}"]
    for estimator, own in runs.items():
        models, users = len({run.fingerprint for run in own}), len({run.user for run in own})
        censored = sum(run.censored for run in own)
        lines.append(
            f"{estimator}: {len(own):,} usable jobs of {models:,} models by {users:,} users, {censored:,} "
            "cut short (out of memory, failed or cancelled: they needed more than was seen)"
        )
    strange = sum(len(found.runs[estimator]) - len(own) for estimator, own in runs.items())
    left_out = {**found.left_out, **({"far from their estimate": strange} if strange else {})}
    if left_out:
        lines.append(
            "left out: "
            + ", ".join(f"{n:,} {why}" for why, n in sorted(left_out.items(), key=lambda i: -i[1]))
        )
    return lines


def _reported_lines(contexts: Mapping[str, LearnedContext]) -> List[str]:
    return [
        "",
        *(
            f"CUDA context on {kind}: {one.beyond_mib:+,.0f} MiB, as jobs of {one.users} users reported"
            for kind, one in contexts.items()
        ),
    ]


def _compared(learned: Learned, now: Optional[SiteLayer]) -> List[str]:
    layer = learned.layer
    lines = ["", f"{layer.estimator:<10} {'jobs':>6}  median error  above request  kept in vain"]
    for name, held in (("in force", learned.was), ("learned", learned.will)):
        lines.append(
            f"{name:<10} {held.runs:>6,}  {held.median_error * 100:>10.1f} %  "
            f"{held.above_request * 100:>11.1f} %  {held.in_vain * 100:>10.1f} %"
        )
    constants = "".join(
        f", {value:+,.0f} MiB on {kind}"
        for kind, value in sorted(layer.constants.items())
        if len(layer.constants) > 1 or round(value) != round(layer.constant)
    )
    lines += [
        "learned: each model by a fit that has not seen it; users weigh the same, the worst is left out",
        "",
        f"peak {layer.constant:+,.0f} MiB{constants} and {_percent(layer.offset)} for new models; "
        f"{len(layer.models):,} models with a term of their own",
        f"bound {layer.quantile:.2f} times as wide as the estimator's "
        f"({layer.known_quantile:.2f} for those models), meant to hold for {layer.coverage * 100:.3g} %",
    ]
    if now is None:
        lines.append("in force is the estimator as it came")
    return lines


def _percent(offset: float) -> str:
    return f"{(exp(offset) - 1) * 100:+.1f} %"


def _as_json(
    learned: Sequence[Learned], path: str, contexts: Mapping[str, LearnedContext], *, dry: bool
) -> Dict[str, Any]:
    return {
        "schema": SCHEMA,
        "path": path,
        "written": (any(one.better for one in learned) or bool(contexts)) and not dry,
        "contexts": {kind: one._asdict() for kind, one in contexts.items()},
        "estimators": {
            one.layer.estimator: {
                "better": one.better,
                "in_force": one.was._asdict(),
                "learned": one.will._asdict(),
                "layer": one.layer._asdict(),
            }
            for one in learned
        },
    }


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value <= 0.999:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0.5 to 0.999")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem learn", description=__doc__)
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
