"""Decide what a job asks of Slurm: what is asked, the GPUs in reach, the need there, the request."""

from __future__ import annotations

from typing import List

from slurm_gpumem.errors import NotEstimatedError, SlurmError, UsageError, not_estimated
from slurm_gpumem.slurm.client import SlurmMissingError
from slurm_gpumem.slurm.gres import gres_word
from slurm_gpumem.slurm.submit.gpu_options import has_gpu_step
from slurm_gpumem.submission.candidate_gpus import find_candidates
from slurm_gpumem.submission.job.slots import check_slot
from slurm_gpumem.submission.needs import estimate_needs
from slurm_gpumem.submission.plan import NOT_RUN_YET, Plan
from slurm_gpumem.submission.rules import choose_request
from slurm_gpumem.submission.share.request import GpuRequest, fits_somewhere
from slurm_gpumem.submission.submission import (
    Submission,
    Workload,
    key_of_script,
    read_workload,
    why_never_same,
)


def decide(asked: Submission) -> Plan:
    """What to ask for; DoesNotFitError when no GPU in reach is large enough."""
    check_slot(asked)
    if asked.goes_unchanged:
        return Plan(asked, kept_because=asked.goes_unchanged)
    if asked.learns:
        return _by_earlier_runs(asked)
    from slurm_gpumem.submission.job.sharded_jobs import why_not_estimated

    unknown = why_not_estimated(asked)
    if unknown:
        return _kept_whole(asked, unknown)
    try:
        workload = read_workload(asked)
    except NotEstimatedError as error:
        return _kept_whole(asked, error.why)
    if asked.gpus.gpus > 1:
        from slurm_gpumem.submission.job.launcher import refuse_more_ranks_than_gpus

        refuse_more_ranks_than_gpus(asked)
    try:
        candidates = find_candidates(asked)
    except SlurmMissingError:
        raise  # Then sbatch is missing as well.
    except SlurmError as error:
        return _without_answer(asked, workload, error)
    if candidates.empty:
        return Plan(asked, workload, kept_because=candidates.empty, warnings=candidates.warnings)
    needs = estimate_needs(asked, workload, candidates)
    return _with_remarks(choose_request(asked, workload, candidates, needs))


def _kept_whole(asked: Submission, why: str) -> Plan:
    """A job whose peak is not estimated: its own GPU options, or one whole GPU where it has none."""
    reason = not_estimated(why)
    if asked.gpus.gpus or asked.gpus.shared_gres or asked.observed:
        return Plan(asked, kept_because=reason)
    gpu_type = asked.gpus.gpu_type
    return Plan(asked, request=GpuRequest(gres_word("gpu", gpu_type, 1), 0, 0, gpu_type, True, reason))


def _without_answer(asked: Submission, workload: Workload, error: SlurmError) -> Plan:
    """Slurm says nothing of its GPUs, which refuses no job: it goes as it asked, or with a whole GPU."""
    done = "its share of a GPU was not decided, and nothing is recorded of it"
    if asked.gpus.gpus or asked.gpus.shared_gres or asked.observed:
        plan = Plan(asked, workload, kept_because="Slurm did not say which GPUs it has")
        return plan._replace(warnings=(f"{error}.\nThe job goes to sbatch as it is: {done}",))
    reason = "Slurm did not say which GPUs it has"
    request = GpuRequest(gres_word("gpu", asked.gpus.gpu_type, 1), 0, 0, asked.gpus.gpu_type, True, reason)
    warning = f"{error}.\nThe job asks for a whole GPU instead of a part: {done}"
    return Plan(asked, workload, request=request, warnings=(warning,))


def _with_remarks(plan: Plan) -> Plan:
    """The plan, and what its script says that does not go with it."""
    from slurm_gpumem.submission.job.script_remarks import (
        batch_remark,
        preallocation_remark,
        server_remarks,
        source_remarks,
    )

    asked, workload, largest = plan.asked, plan.workload, plan.largest
    found = [
        batch_remark(asked, workload),
        *source_remarks(asked, workload.summary),
        *workload.notes,
    ]
    if plan.shared and not (plan.request and plan.request.whole_gpu) and largest is not None:
        found.append(preallocation_remark(asked))
        found.append(server_remarks(asked, largest.model, plan.reserved_mib))
    return plan._replace(warnings=(*plan.warnings, *filter(None, found)))


def _by_earlier_runs(asked: Submission) -> Plan:
    """A share by what earlier runs of the script measured; its own options where it has not run yet."""
    from slurm_gpumem.accounting.new_runs import note_new_runs
    from slurm_gpumem.submission.job.script_key import key_of_one_submission, reads_its_task
    from slurm_gpumem.submission.sweep.pilot import tasks_at_once, with_pilot

    named: List[str] = []
    key = key_of_script(asked, named)
    plan = Plan(asked, Workload(script=key), kept_because=NOT_RUN_YET)
    if asked.gpus.gpus != 1 or asked.gpus.keep_whole or asked.gpus.shared_gres:
        return plan._replace(kept_because=asked.gpus.keep_whole or "it asks for no single GPU")
    unlike = why_never_same(asked)
    if any(map(has_gpu_step, named)):
        unlike = "an srun in a script that it starts asks for a GPU itself"
    if unlike:
        if not reads_its_task(asked.text, asked.command) or tasks_at_once(asked) is None:
            return plan._replace(kept_because=unlike)
        # Of its array the first task can still be measured for the others.
        key = key_of_one_submission()
        plan = plan._replace(workload=Workload(script=key))
    note_new_runs()
    try:
        candidates = find_candidates(asked)
    except (SlurmError, UsageError):
        return plan  # sbatch says in its own words what is wrong
    if candidates.empty or candidates.whole_nodes:
        return plan
    names = {gpu.name for gpu in candidates.gpus}
    plan = plan._replace(workload=Workload(script=key, script_gpu=names.pop() if len(names) == 1 else None))
    from slurm_gpumem.submission.job.script_remarks import server_remarks

    server = server_remarks(asked, candidates.models[0], None) if candidates.models else None
    if server:
        return plan._replace(warnings=(server,))
    first_mib = asked.config.sharing.first_run_mib
    workload = plan.workload._replace(mem_mib=first_mib)
    needs = estimate_needs(asked, workload, candidates)
    if not first_mib and not all(one.estimate for one in needs.on):
        return with_pilot(plan, candidates, needs)
    if not fits_somewhere(candidates.kinds, needs.needs):
        return plan._replace(kept_because="earlier runs took more than a GPU here has")
    return _with_remarks(choose_request(asked, plan.workload, candidates, needs))
