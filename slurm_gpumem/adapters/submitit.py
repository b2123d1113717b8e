"""A submitit executor that asks for a share of a GPU, as gpusbatch does.

    executor = GpumemExecutor("log", model="resnet50.txt", batch_size=128)
    executor.update_parameters(time=60, partition="gpu", gpus_per_node=1)

Or by submitit's own way to choose one: `AutoExecutor("log", cluster="gpumem")`, whose options are
`gpumem_partition=…` and, for the share, `gpumem_share={"model": "resnet50.txt", "batch_size": 128}`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Set, Union

from submitit.slurm.slurm import SlurmExecutor

from slurm_gpumem.api import decide
from slurm_gpumem.terminal.say import say

SHARE = "share"
DEFAULT_AT_ONCE = 256
"""submitit's own for array_parallelism."""
_SCRIPT = "#!/bin/sh\npython -u -m submitit.core._submit\n"
"""What submitit's scripts have in common: what runs stands in a file."""
_NOT_SBATCH = (
    "additional_parameters", "array_parallelism", "map_count", "num_gpus", "setup", "signal_delay_s",
    "srun_args", "stderr_to_stdout", "teardown", "use_srun",
)  # fmt: skip
"""Parameters that submitit makes something else of than an option of sbatch."""
_GPUS = ("gpus_per_node", "gpus_per_task", "num_gpus", "gres", "cpus_per_gpu", "mem_per_gpu")
"""What asks for whole GPUs, or by them: a share takes their place."""


class GpumemExecutor(SlurmExecutor):
    """submitit's Slurm executor; `share` holds what gpusbatch's options say: model, batch_size, mem …"""

    def __init__(self, folder: Union[str, Path], max_num_timeout: int = 3, **share: Any) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout)
        self._share: Dict[str, Any] = dict(share)

    @classmethod
    def _valid_parameters(cls) -> Set[str]:
        return {*super()._valid_parameters(), SHARE}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        self._share.update(kwargs.pop(SHARE, None) or {})
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(self, delayed_submissions: List[Any]) -> List[Any]:
        """Decided now, when all parameters are known; arrays copy them into an executor of submitit's own."""
        given = self.parameters
        self.parameters = with_share(given, self._share, len(delayed_submissions))
        try:
            found: List[Any] = super()._internal_process_submissions(delayed_submissions)
            return found
        finally:
            self.parameters = given

    @classmethod
    def affinity(cls) -> int:
        """Only by name: below submitit's own, so that nothing changes for who did not ask for it."""
        return min(1, super().affinity())


def with_share(parameters: Mapping[str, Any], share: Mapping[str, Any], tasks: int = 1) -> Dict[str, Any]:
    """submitit's parameters of a job with those that ask for its share; as they are where it gets none.

    Of an array of which nothing is known the first task is measured, and the others get what it took.
    """
    more = {str(key): value for key, value in (parameters.get("additional_parameters") or {}).items()}
    options = {
        key: value for key, value in parameters.items() if key not in _NOT_SBATCH and value is not None
    }
    if tasks > 1:
        options["array"] = f"0-{tasks - 1}%{parameters.get('array_parallelism') or DEFAULT_AT_ONCE}"
    decision = decide(_SCRIPT, sbatch={**options, **more}, **share)
    for warning in decision.warnings:
        say(f"warning: {warning}")
    if decision.gres is None:
        say(f"no share of a GPU: {decision.reason}")
        return dict(parameters)
    say(f"asking for {decision.gres} ({decision.reason})")
    kept = {key: value for key, value in parameters.items() if key not in _GPUS}
    more = {key: value for key, value in more.items() if key.replace("-", "_") not in _GPUS}
    known = SlurmExecutor._valid_parameters()
    asked = dict(decision.options)
    if asked.pop("array", "").endswith("%1"):
        kept["array_parallelism"] = 1
    for name, value in asked.items():
        key = name.replace("-", "_")
        if key in known:
            kept[key] = value
        else:
            more[name] = value
    return {**kept, "additional_parameters": more} if more else kept
