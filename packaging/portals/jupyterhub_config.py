"""JupyterHub with batchspawner: a choice of GPU shares instead of whole GPUs; loaded by jupyterhub_config.py.

A shard is 1 GiB of GPU memory (shard_mib = 1024). CPUs and memory are in proportion: without --mem a job
with shards gets all of its node's memory.
"""

from typing import Dict, List

SHARES = {
    "5": ("5 GiB of GPU memory, for trying things out", {"gres": "shard:5", "nprocs": "1", "memory": "10G"}),
    "10": ("10 GiB of GPU memory", {"gres": "shard:10", "nprocs": "2", "memory": "20G"}),
    "20": ("20 GiB of GPU memory", {"gres": "shard:20", "nprocs": "4", "memory": "40G"}),
    "0": ("no GPU, starts at once", {"gres": "", "nprocs": "2", "memory": "8G"}),
}


def chosen(form: Dict[str, List[str]]) -> Dict[str, str]:
    """What the form says, as batchspawner's template takes it; it becomes lines of a batch script."""
    return dict(SHARES.get(form.get("share", [""])[0], SHARES["5"])[1])


c = get_config()  # type: ignore[name-defined]  # noqa: F821 - JupyterHub's own
c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.SlurmSpawner.req_partition = "gpu"
c.SlurmSpawner.req_runtime = "2:00:00"
# No share free within this time: the hub cancels the job and says so; then "no GPU" is there to choose.
c.SlurmSpawner.start_timeout = 600
c.SlurmSpawner.options_form = (
    '<label for="share">GPU</label><select class="form-control" name="share">'
    + "".join(f'<option value="{key}">{title}</option>' for key, (title, _) in SHARES.items())
    + "</select>"
)
c.SlurmSpawner.options_from_form = chosen
