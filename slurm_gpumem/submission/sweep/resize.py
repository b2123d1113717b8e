"""When an array's first task is measured: the waiting ones ask for what it took, and start.

`python -I -m slurm_gpumem.submission.sweep.resize KEY GPU PEAK ACTIVITY`: the sampler of the task's node
starts it as the job's owner, whose right it is to change their own jobs. KEY names the script, PEAK is in
MiB and ACTIVITY in percent ("-" where it is not known); without a peak the tasks start on whole GPUs, as
they were submitted. What it did already it does not do again: it may be killed anywhere and run at any time.
"""

from __future__ import annotations

import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import load_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.config.recovery import load_recovery_config
from slurm_gpumem.errors import GpumemError, SlurmError
from slurm_gpumem.formats.comment import CommentRecord, append_record, format_record, own_words, parse_record
from slurm_gpumem.slurm.client import Commands, SlurmClient
from slurm_gpumem.slurm.gres import held_by, replaced
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.waiting import WaitingTasks, at_once, waiting_tasks
from slurm_gpumem.slurm.submit.gpu_options import gpu_wish, merge_wishes
from slurm_gpumem.slurm.submit.sbatch_options import CommandLine, Option
from slurm_gpumem.submission.candidate_gpus import find_candidates
from slurm_gpumem.submission.job.settings import ENVIRONMENT, JobSettings, OwnOptions, Setting
from slurm_gpumem.submission.needs import estimate_needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.rules import choose_request
from slurm_gpumem.submission.sbatch_call import record_of
from slurm_gpumem.submission.share.request import fits_somewhere
from slurm_gpumem.submission.submission import MeasuredRun, RawInput, Submission, Workload
from slurm_gpumem.submission.sweep.pilot import CPUS, MEMORY
from slurm_gpumem.units import format_mib

ONE = 1
"""The limit that an array was submitted with."""


class Change(NamedTuple):
    """What becomes of the tasks that wait."""

    fields: Dict[str, str]
    """For scontrol; none where they start as they are."""
    shards: int = 0
    on_each: int = 0
    """How many of them fit on one GPU."""


def resize(client: SlurmClient, key: str, run: Optional[MeasuredRun]) -> List[str]:
    """Change and release the tasks that wait for the run of this script; a line on each array.

    SlurmError, after the others, when an array keeps its limit.
    """
    lines, failed = [], []
    for tasks in waiting_tasks(client):
        record = parse_record(tasks.comment)
        if record is None or record.hold is None or record.fingerprint != key:
            continue
        waits = not record.shards or (run is not None and run.peak_mib > (record.estimate_mib or 0))
        try:
            held = record.hold != ONE == at_once(client, tasks.array)
            if waits or held:
                change = _change(tasks, record, run) if run is not None and waits else Change({})
                lines.append(_carried_out(client, tasks, record, change, run, held=held))
        except SlurmError as error:
            failed.append(f"array {tasks.array}: {error}")
    if failed:
        raise SlurmError("; ".join([*lines, *failed]))
    return lines


def _carried_out(
    client: SlurmClient,
    tasks: WaitingTasks,
    record: CommentRecord,
    change: Change,
    run: Optional[MeasuredRun],
    *,
    held: bool,
) -> str:
    refused, slurm = "", Controller(client)
    if change.fields:
        try:
            slurm.update(tasks.name, **change.fields)
            now = slurm.job(tasks.last)
            wanted = held_by(change.fields["Gres"])
            if now is not None and held_by(now.request) != wanted:
                refused = f"Slurm shows {now.request} after a change to {change.fields['Gres']}"
        except SlurmError as error:
            refused = str(error)
    if held:
        _let_go(client, tasks.array, record)  # whatever came of it: nobody waits forever
    if refused or not change.shards or run is None:
        instead = "keep their shares" if record.shards else "start on whole GPUs"
        return f"array {tasks.array}: its tasks {instead}{refused and ': '}{refused}"
    return (
        f"array {tasks.array}: {format_mib(run.peak_mib)} measured, {tasks.how_many} tasks at "
        f"{change.shards} shards, {change.on_each} on each GPU"
    )


def _let_go(client: SlurmClient, array: int, record: CommentRecord) -> None:
    try:
        # Newer versions take it for the array only.
        Controller(client).update(str(array), ArrayTaskThrottle=str(record.hold))
    except SlurmError:
        # 22.05 complains of tasks that have ended, and changes the others.
        if at_once(client, array) == ONE:
            raise


def _change(tasks: WaitingTasks, record: CommentRecord, run: MeasuredRun) -> Change:
    try:
        plan = _plan(tasks, record, run)
    except GpumemError:
        return Change({})  # larger than any GPU in reach, or Slurm does not say what it has
    request = plan.request if plan is not None else None
    held = held_by(tasks.request)
    if plan is None or request is None or not plan.shared or request.whole_gpu or held is None:
        return Change({})
    if request.units < (record.shards or 0):
        return Change({})  # a task that ran out of memory has raised them
    fields = {"Gres": replaced(tasks.request, request.gres)}
    own = record.host.split("+")
    if CPUS in own and plan.host.cpus:
        fields.update(dict.fromkeys(("NumCPUs", "CPUsPerTask", "MinCPUsNode"), str(plan.host.cpus)))
    if MEMORY in own and plan.host.memory_mib:
        fields["MinMemoryNode"] = str(plan.host.memory_mib)
    new = record_of(plan)._replace(
        on_oom=record.on_oom,
        model=record.model,
        fingerprint=record.fingerprint,
        hold=record.hold,
        host=record.host,
    )
    comment = append_record(own_words(tasks.comment) or None, format_record(new))
    if comment is None:
        return Change({})  # what hooks read there would not be true any more
    fields["Comment"] = comment
    return Change(fields, request.units, request.per_gpu // request.units)


def _plan(tasks: WaitingTasks, record: CommentRecord, run: MeasuredRun) -> Optional[Plan]:
    """What is asked for such a task; None where what was measured says nothing of the GPUs in its reach."""
    asked = _asked(tasks, record)
    workload = Workload(script=record.fingerprint, measured=run)
    candidates = find_candidates(asked)
    needs = estimate_needs(asked, workload, candidates)
    known = {kind.gpu_type for kind, one in zip(candidates.kinds, needs.on) if one.estimate}
    if len(known) != 1:
        return None
    if not all(one.estimate for one in needs.on):
        # It was measured on one type of those in reach: there the others are to run, too.
        asked = asked._replace(gpus=asked.gpus._replace(gpu_type=known.pop()))
        candidates = find_candidates(asked)
        needs = estimate_needs(asked, workload, candidates)
    if not fits_somewhere(candidates.kinds, needs.needs):
        return None
    return choose_request(asked, workload, candidates, needs)


def _asked(tasks: WaitingTasks, record: CommentRecord) -> Submission:
    """The submission, as far as it decides about a share, from what Slurm has of it."""
    held = held_by(tasks.request)
    gpu = f"gpu:{held.gpu_type}:1" if held and held.gpu_type else "gpu:1"
    given = {"partition": ",".join(tasks.partitions), "gres": replaced(tasks.request, gpu)}
    if CPUS not in record.host.split("+"):
        given["cpus-per-task"] = str(tasks.cpus)
    line = CommandLine(tuple(Option(name, text, ()) for name, text in given.items()), None, (), het_job=False)
    slow = record.slow
    settings = JobSettings({"max-slowdown": Setting(slow, "its comment", ENVIRONMENT)} if slow else {})
    options = merge_wishes(line.options, {}, ())
    config = load_config()
    raw = RawInput(line, OwnOptions({}), None, plain=True)
    return Submission(raw, settings, config, options, gpu_wish(options, None), learns=True)


def _measured(words: Sequence[str]) -> Tuple[str, Optional[MeasuredRun]]:
    key, gpu, peak, activity = words
    if not peak.isdigit():
        return key, None
    return key, MeasuredRun(gpu, int(peak), int(activity) if activity.isdigit() else None)


def main(argv: Sequence[str]) -> int:
    """Entry point; what it did, a line on each array, on standard output."""
    if len(argv) != 4:
        print("usage: resize KEY GPU PEAK ACTIVITY; the sampler calls it", file=sys.stderr)
        return 2
    key, run = _measured(argv)
    config = load_recovery_config(site_config_path())
    client = Commands(config.slurm_env, config.slurm_bin)
    try:
        for line in resize(client, key, run):
            print(line)
    except GpumemError as error:
        print(f"tasks that wait for a measurement stay as they are: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
