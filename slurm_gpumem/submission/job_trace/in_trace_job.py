"""What a trace job runs: trace the script, then make the real job, whose number it was told, ask for less."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.errors import GpumemError, SlurmError
from slurm_gpumem.slurm.gres import gres_word, held_by
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.submit.sbatch import installed_options
from slurm_gpumem.slurm.submit.sbatch_options import read_command_line, sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.decide import decide
from slurm_gpumem.submission.job.settings import OwnOptions
from slurm_gpumem.submission.job_trace.before_submission import with_trace
from slurm_gpumem.submission.job_trace.trace_job import OUTPUT, told_real_job
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.sbatch_call import PlannedCall, build_call
from slurm_gpumem.submission.submission import RawInput, Submission, read_submission
from slurm_gpumem.terminal.say import say

_AWAIT_S = 60.0


def main() -> None:
    """What the trace job runs; its exit code decides what becomes of a job that is to be stopped."""
    own_id = os.environ["SLURM_JOB_ID"]
    output = Path(OUTPUT.replace("%j", own_id)).absolute()
    told = json.loads(sys.stdin.read())
    of_slurm = {key: os.environ[key] for key in ("SLURM_CONF", "PATH") if key in os.environ}
    os.environ.clear()
    os.environ.update({**of_slurm, **told["environment"]})
    try:
        _trace_and_change(told, own_id)
    except GpumemError as error:
        say(str(error))
        sys.exit(1)
    # Only what went wrong is worth a file in the user's folder.
    output.unlink(missing_ok=True)
    sys.exit(0)


def _trace_and_change(told: Dict[str, Any], own_id: str) -> None:
    controller = Controller()
    name, request = _real_job(controller, own_id)
    os.chdir(told["folder"])
    asked = _asked(told)
    after = with_trace(asked, lambda state, seconds: None, here=True)
    for note in after.notes:
        say(f"note: {note}")
    if after.asked.not_estimated:
        return  # it keeps the whole GPU that it has
    plan = decide(after.asked)
    fields = _fields(plan, build_call(plan), request)
    if not fields:
        raise SlurmError(f"job {name} stays as it is: {plan.reason}")
    controller.update(name, **fields)
    # Trust no return code: an update can be refused and done, or done in the display only.
    now = controller.waits_for(name, own_id, os.geteuid()) or ""
    if "Gres" in fields and held_by(now) != held_by(fields["Gres"]):
        raise SlurmError(f"job {name} shows {now} after a change to {fields['Gres']}")
    say(f"job {name} asks for {fields.get('Gres', request)}")


def _real_job(controller: Controller, own_id: str) -> Tuple[str, str]:
    """The job that this one traces for, and what it asks for; gpusbatch says its number once it has it."""
    end = time.monotonic() + _AWAIT_S
    while True:
        own = controller.job(own_id)
        name = told_real_job(own.comment) if own is not None else None
        if name is not None:
            break
        if time.monotonic() > end:
            raise SlurmError("no job waits for this trace: it was cancelled, or sbatch did not take it")
        time.sleep(1.0)
    request = controller.waits_for(name, own_id, os.geteuid())
    if request is None:
        raise SlurmError(f"job {name} is not yours, or does not wait for this trace: nothing was changed")
    return name, request


def _asked(told: Dict[str, Any]) -> Submission:
    script: Optional[BatchScript] = None
    words: List[str] = list(told["options"])
    if told["name"] is not None:
        script = BatchScript(told["name"], told["name"], base64.b64decode(told["data"]))
        words += ["--", told["name"], *told["args"]]
    line = read_command_line(words, sbatch_table(), ask_more=installed_options)
    return read_submission(RawInput(line, OwnOptions(told["own"]), script, installed_options))


def _fields(plan: Plan, planned: PlannedCall, request: str) -> Dict[str, str]:
    """What scontrol changes: the share, CPUs and host memory in proportion, our record."""
    held = held_by(request)
    if plan.request is None or plan.largest is None or held is None:
        return {}
    added, fields = planned.added, {}
    if plan.request.units:
        # With the type that the job has already: Slurm mixes no requests with and without.
        share = gres_word(held.gres, held.gpu_type, min(plan.request.units, held.units))
        fields["Gres"] = ",".join([*plan.asked.gpus.other_gres, share])
    if "comment" in added:
        fields["Comment"] = added["comment"]
    if "cpus-per-task" in added:
        fields["CpusPerTask"] = added["cpus-per-task"]
    if added.get("mem", "").endswith("M"):
        fields["MinMemoryNode"] = added["mem"][:-1]
    return fields
