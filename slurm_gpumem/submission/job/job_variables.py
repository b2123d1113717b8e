"""Variables of PyTorch and CUDA that a job runs with: set where it is submitted, or in its script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    from slurm_gpumem.slurm.submit.gpu_options import Wishes
    from slurm_gpumem.slurm.submit.script import BatchScript

VARIABLES = {
    "PYTORCH_CUDA_ALLOC_CONF": "alloc-conf",
    "PYTORCH_ALLOC_CONF": "alloc-conf",
    "CUBLAS_WORKSPACE_CONFIG": "cublas-workspace",
    "CUDA_MODULE_LOADING": "module-loading",
}
"""What each says of a job, by the key of its #GPUMEM line."""
_SET = rf"(?<![\w$-])({'|'.join(VARIABLES)})=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)"
_LOADING = ("lazy", "eager")


class Variables(NamedTuple):
    """What was found, by the key that it sets: value and where it is set."""

    found: Mapping[str, Tuple[str, str]]
    remarks: Tuple[str, ...] = ()
    """What is set and cannot be read here."""


def job_environment(
    environ: Mapping[str, str], script: Optional[BatchScript] = None, options: Optional[Wishes] = None
) -> Variables:
    """The last setting of each counts, as in a shell; --export=NONE leaves out the environment."""
    found: Dict[str, Tuple[str, str]] = {}
    remarks: List[str] = []
    for where, name, value in (*_inherited(environ, options), *_written(script, options)):
        plain = value.strip("\"'")
        if "$" in plain or "`" in plain:
            remarks.append(f"{where} sets {name}={plain}, which cannot be read here: the default is assumed")
            found.pop(VARIABLES[name], None)
        elif name != "CUDA_MODULE_LOADING":
            found[VARIABLES[name]] = (plain, where)
        elif plain.lower() in _LOADING:
            found[VARIABLES[name]] = (plain.lower(), where)
    return Variables({key: value for key, value in found.items() if value[0]}, tuple(remarks))


def _inherited(environ: Mapping[str, str], options: Optional[Wishes]) -> Iterator[Tuple[str, str, str]]:
    """What sbatch hands on from where it is called."""
    export = (options and options.get("export")) or "ALL"
    if "ALL" in export.split(","):
        for name in VARIABLES:
            if name in environ:
                yield f"{name} (environment)", name, environ[name]
    for part in export.split(","):
        given = re.fullmatch(_SET, part) if "=" in part else None
        if given:
            yield "--export", given[1], given[2]


def _written(script: Optional[BatchScript], options: Optional[Wishes]) -> Iterator[Tuple[str, str, str]]:
    lines = []
    if script is not None:
        lines = [(f"{script.name}, line {n}", line) for n, line in enumerate(script.text().split("\n"), 1)]
    wrapped = options and options.get("wrap")
    if wrapped:
        lines.append(("--wrap", wrapped))
    for where, line in lines:
        # The names first: compiling the pattern takes longer than all else here.
        if not line.lstrip().startswith("#") and any(name in line for name in VARIABLES):
            for given in re.finditer(_SET, line):
                yield where, given[1], given[2]
