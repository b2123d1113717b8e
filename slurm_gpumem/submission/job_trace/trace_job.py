"""A trace in a short Slurm job of its own, where a site allows no work on its login nodes.

The real job is submitted at once, for a whole GPU and behind the trace job: by a dependency, so that Slurm
itself lets it go whatever becomes of the trace. "afterany": it then runs on the whole GPU. "afterok" with
--kill-on-invalid-dep: Slurm cancels it. The trace job is told the real job's number in its own comment, which
only its owner can change; it makes that job ask for less, by the user's own right, and ends. A whole GPU is
all shards of one here: their number can be changed on every version from 22.05 on, while 22.05 refuses to
make shards of gpu:1.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.submit.sbatch import SBATCH, SbatchCall
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.candidate_gpus import CandidateGpus
from slurm_gpumem.submission.needs import estimate_needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.rules import choose_request
from slurm_gpumem.submission.sbatch_call import PlannedCall
from slurm_gpumem.submission.submission import Submission, Workload

TRACE_CPUS = 2
"""CPUs that a traced script may use: most of a trace is one Python."""

_ROOT = str(Path(__file__).resolve().parents[3])
_INSIDE = "slurm_gpumem.submission.job_trace.in_trace_job"
OUTPUT = "gpumem-trace-%j.out"
_MORE_MIB, _MORE_S = 512, 120
"""Of the trace job beyond the traced script's own limits."""


_TOLD = re.compile(r"gpumem-traces=([0-9]{1,10})")


def tell_real_job(controller: Controller, trace_job: int, real_job: int) -> None:
    """Let the trace job know whose request it changes."""
    controller.update(str(trace_job), Comment=f"gpumem-traces={real_job}")


def told_real_job(comment: str) -> Optional[str]:
    """The number that it was told; None as long as it was not."""
    found = _TOLD.fullmatch(comment.strip())
    return found.group(1) if found else None


class Deferred(NamedTuple):
    """A trace that a job does: its call, and what its user should know."""

    call: SbatchCall
    stop: bool
    """Whether the real job is to be cancelled where the trace fails."""


def deferred_trace(asked: Submission, data: bytes, traces: int) -> Deferred:
    """The trace job of what is asked."""
    site, options = asked.config.trace, asked.options
    if options.any_of("clusters"):
        raise UsageError("this site traces in a job, which knows no --clusters: use --model or --gpu-mem")
    if "?" in (options.get("dependency") or ""):
        raise UsageError("this site traces in a job, and --dependency with ? cannot wait for it, too")
    seconds = (asked.settings.trace_limit_s or site.time_limit_s) * traces + _MORE_S
    words = [
        "--job-name=gpumem-trace",
        f"--time={int(seconds // 60) + 1}",
        f"--cpus-per-task={TRACE_CPUS}",
        "--ntasks=1",
        f"--mem={site.memory_mib + _MORE_MIB}M",
        f"--output={OUTPUT}",
        "--no-requeue",
    ]
    words += [f"--partition={site.partition}"] if site.partition else []
    words += [f"--{name}={options.get(name)}" for name in ("account", "chdir") if options.get(name)]
    unset = tuple(name for name in os.environ if name.startswith("SBATCH_"))
    script = BatchScript("trace job", None, _script_of(asked, data))
    return Deferred(SbatchCall((SBATCH, *words), unset, script), asked.settings.trace_or == "stop")


def whole_until_traced(asked: Submission, candidates: CandidateGpus) -> Plan:
    """The real job's plan: all shards of a GPU, which the trace job makes fewer."""
    by_shards = candidates._replace(gpu_keeps_off_shards=False)
    return choose_request(asked, Workload(), by_shards, estimate_needs(asked, Workload(), by_shards))


def behind(planned: PlannedCall, asked: Submission, trace_job: int, *, stop: bool) -> SbatchCall:
    """The real job's call, after the trace job."""
    own = asked.options.get("dependency")
    kind = "afterok" if stop else "afterany"
    more = [f"--dependency={kind}:{trace_job}" + (f",{own}" if own else "")]
    more += ["--kill-on-invalid-dep=yes"] if stop else []
    call = planned.call
    at = len(call.argv) if call.script_at is None else call.script_at
    at -= 1 if call.script_at is not None and call.argv[at - 1] == "--" else 0
    place = None if call.script_at is None else call.script_at + len(more)
    return call._replace(argv=(*call.argv[:at], *more, *call.argv[at:]), script_at=place)


def _script_of(asked: Submission, data: bytes) -> bytes:
    """The trace job's script: all that it needs is in it, so no folder has to be shared."""
    line, script = asked.raw.line, asked.script
    words = [word for option in line.options if not option.ours for word in option.words]
    told = {
        "options": words,
        "args": line.script_args,
        "own": dict(asked.raw.own.values),
        "name": None if script is None else script.name,
        "data": base64.b64encode(data).decode(),
        "folder": os.getcwd(),
        # As it is here: what Slurm adds or a node lacks would make it another trace.
        "environment": dict(os.environ),
    }
    code = f"import sys; sys.path.insert(0, {_ROOT!r})\nfrom {_INSIDE} import main\nmain()"
    start = shlex.join([sys.executable, "-I", "-c", code])
    return f"#!/bin/sh\nexec {start} <<'END_OF_JOB'\n{json.dumps(told)}\nEND_OF_JOB\n".encode()
