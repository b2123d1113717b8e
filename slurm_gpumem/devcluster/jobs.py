"""Follow jobs in a dev cluster: where they are and when they end."""

from __future__ import annotations

import re
import time
from typing import Dict, Sequence

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.slurm.states import FINAL

_POLL_S = 0.05
_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z:/]+)=(.*?)(?=\s+[A-Za-z:/]+=|\s*$)")


def show_job(cluster: Cluster, job_id: str) -> Dict[str, str]:
    """The fields of `scontrol show job -d`; a comment that contains `word=` is cut there."""
    done = cluster.run(["scontrol", "show", "job", "-d", "-o", str(job_id)])
    if done.returncode != 0:
        raise DevClusterError(f"scontrol show job {job_id}: {done.stderr.strip()}")
    return dict(_FIELD.findall(done.stdout.strip()))


def wait_for_job(
    cluster: Cluster, job_id: str, states: Sequence[str] = FINAL, timeout_s: float = 60.0
) -> Dict[str, str]:
    """The job's fields once it is in one of `states`; raises DevClusterError if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while True:
        fields = show_job(cluster, job_id)
        if fields["JobState"] in states:
            return fields
        if time.monotonic() > deadline:
            raise DevClusterError(
                f"job {job_id} is {fields['JobState']} ({fields.get('Reason', 'no reason')}) "
                f"after {timeout_s:.0f} s, not {' or '.join(states)}"
            )
        time.sleep(_POLL_S)
