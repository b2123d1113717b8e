"""Which PyTorch a job runs with, as far as the submitting side can see it: nothing is imported or run.

The environment that the script activates, else the one that is active where it is submitted, names its
PyTorch and CUDA in torch/version.py. A job that gets its software otherwise (modules, containers) says
nothing here.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Mapping, Optional, Tuple

from slurm_gpumem.launchers import LAUNCHERS
from slurm_gpumem.slurm.submit.gpu_options import Wishes
from slurm_gpumem.slurm.submit.script import BatchScript

_ACTIVATES = re.compile(r"(?:^|[;&|]\s*)(?:source|\.)\s+(\S+)/bin/activate[\"']?(?=[\s;&|]|$)")
_CONDA = re.compile(r"(?:^|[;&|]\s*)(?:conda|mamba|micromamba)\s+activate\s+([^\s;&|]+)")
_IN_BIN = "|".join(["python[0-9.]*", *(one.name for one in LAUNCHERS if one.marks_environment)])
_PYTHON = re.compile(rf"(?:^|\s)(\S+)/bin/(?:{_IN_BIN})(?=\s|$)")
_ELSEWHERE = re.compile(
    r"(?:^|[;&|]\s*)(?:module|ml|spack|guix|nix-shell)\s"
    r"|\b(?:apptainer|singularity|docker|podman|enroot|charliecloud|ch-run|uv|pixi|poetry|conda)\s+(?:exec|run|start)\b"
    r"|--container-image"
)
"""The job's software comes from somewhere else."""
_VERSION = re.compile(r"^__version__ = ['\"]([0-9][\w.+-]{0,40})['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: [^=\n]{1,40})? = ['\"]([0-9]{1,2})\.([0-9])", re.MULTILINE)
_CAP = 4096


def torch_of_job(
    environ: Mapping[str, str], script: Optional[BatchScript], options: Wishes
) -> Optional[Tuple[str, str]]:
    """Its torch.__version__ with the build for CUDA, and where it was found; None where nobody can say."""
    folder = _folder(environ, script, options)
    if folder is None:
        return None
    for path in sorted(glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages/torch/version.py")):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_CAP)
        except OSError:
            continue  # not ours to read: nothing is known then
        version, cuda = _VERSION.search(text), _CUDA.search(text)
        if version and cuda:  # a build without CUDA is not what runs on the GPU
            return f"{version[1].partition('+')[0]}+cu{cuda[1]}{cuda[2]}", path
    return None


def _folder(environ: Mapping[str, str], script: Optional[BatchScript], options: Wishes) -> Optional[str]:
    """The environment's folder; the last that the script activates counts."""
    found = None
    if "ALL" in (options.get("export") or "ALL").split(","):
        found = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    text = script.text() if script is not None else ""
    for line in [*text.split("\n"), options.get("wrap") or ""]:
        if line.lstrip().startswith("#"):
            continue
        if options.get("container-image") or options.get("container") or _ELSEWHERE.search(line):
            return None
        line = line.strip()
        named = [match[1].strip("\"'") for match in _ACTIVATES.finditer(line)]
        named += [_conda(match[1].strip("\"'"), environ) for match in _CONDA.finditer(line)]
        named += [match[1].strip("\"'") for match in _PYTHON.finditer(line)]
        for name in named:
            if "$" in name or not name:
                return None
            found = os.path.expanduser(name)
    # The job begins where it is submitted, unless it says otherwise; then a relative path is unknown.
    return None if found is None or (options.get("chdir") and not os.path.isabs(found)) else found


def _conda(name: str, environ: Mapping[str, str]) -> str:
    """The folder of an environment that conda knows by name."""
    if "/" in name:
        return name
    base = os.path.dirname(os.path.dirname(environ.get("CONDA_EXE", "")))
    return f"{base}/envs/{name}" if base else ""
