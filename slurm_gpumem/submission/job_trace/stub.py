"""One program for the names in ANSWERS, while a batch script is traced: `python -I stub.py NAME ARGS`.

Launchers run their command once, as the first of their tasks. nvidia-smi answers for the GPU that is asked
for. What would act on the cluster or on people (sbatch, scancel, mail) is recorded and not run; what only
asks Slurm gets no answer.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Callable, Dict, List, Mapping, NoReturn, Optional, Tuple

if __name__ == "__main__":
    # Started by path, in somebody's environment: the package is where this file is.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))

from slurm_gpumem.slurm.submit.sbatch_options import read_command_line, srun_table
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.script.report_folder import LAUNCHED, Report

_SHOWN = 80
_TWO_VALUES = {"mca", "gmca", "pmca", "omca", "genv", "env"}
_ONE_VALUE = {
    "n", "np", "c", "N", "npernode", "ppn", "perhost", "npersocket", "x", "H", "host", "hosts", "hostfile",
    "machinefile", "f", "wd", "wdir", "path", "map-by", "bind-to", "rank-by", "rankfile", "rf", "app", "tune",
    "am", "cpu-set", "cpu-list", "output-filename", "timeout", "prefix", "display", "report-uri", "stdin",
    "xterm", "max-restarts", "launcher", "rmk", "bootstrap", "iface", "genvlist", "envlist", "configfile",
    "print-rank-map", "umask", "dvm-uri", "personality", "runtime-options", "prtemca",
}  # fmt: skip
"""Options of Open MPI's, MPICH's and PRRTE's launchers that take the next word."""
_QUESTIONS: Mapping[str, Callable[[GpuFacts], str]] = {
    "name": lambda gpu: gpu.name,
    "gpu_name": lambda gpu: gpu.name,
    "index": lambda gpu: "0",
    "count": lambda gpu: str(gpu.gpus),
    "uuid": lambda gpu: _UUID,
    "gpu_uuid": lambda gpu: _UUID,
    "memory.total": lambda gpu: f"{gpu.memory_bytes >> 20} MiB",
    "memory.free": lambda gpu: f"{gpu.memory_bytes >> 20} MiB",
    "memory.used": lambda gpu: "0 MiB",
    "utilization.gpu": lambda gpu: "0 %",
    "utilization.memory": lambda gpu: "0 %",
    "compute_cap": lambda gpu: ".".join(map(str, gpu.capability)),
    "driver_version": lambda gpu: "570.00",
    "temperature.gpu": lambda gpu: "30",
    "power.draw": lambda gpu: "0.00 W",
    "compute_mode": lambda gpu: "Default",
    "mig.mode.current": lambda gpu: "Disabled",
    "pci.bus_id": lambda gpu: "00000000:01:00.0",
}
_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def _not_known(gpu: GpuFacts) -> str:
    return "[N/A]"


def _report() -> Report:
    return Report(os.environ["GPUMEM_TRACE_DIR"])


def _recorded(name: str, args: List[str]) -> None:
    text = shlex.join([name, *args])
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
    _report().say(note=f"recorded, not run: {text}")


def _become(words: List[str], more: Mapping[str, str], folder: Optional[str] = None) -> NoReturn:
    """Run the launched command in this process's place."""
    if folder:
        os.chdir(folder)
    try:
        os.execvpe(words[0], words, {**os.environ, **more})
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _number(text: Optional[str]) -> int:
    """A number of tasks; 0 where there is none."""
    return int(text) if text and text.isdigit() else 0


# -- Launchers -----------------------------------------------------------------------------------


def _srun(name: str, args: List[str]) -> int:
    line = read_command_line(args, srun_table())
    own = [option for option in line.options if line.script_at is None or option.at < line.script_at]
    options = {option.name: option.value or "" for option in own}
    if line.script is None or "multi-prog" in options:
        _recorded(name, args)
        return 0
    nodes = _number(options.get("nodes")) or _number(os.environ.get("SLURM_NNODES")) or 1
    tasks = (
        _number(options.get("ntasks"))
        or nodes * _number(options.get("ntasks-per-node"))
        or _number(os.environ.get("SLURM_NTASKS"))
        or 1
    )
    words = [line.script, *_first_component(list(line.argv[(line.script_at or 0) + 1 :]))]
    given = [word.partition("=") for word in options.get("export", "").split(",")]
    more = {key: value for key, equals, value in given if equals}
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        LAUNCHED: str(tasks),
    }
    if options.get("ntasks-per-node"):
        step["SLURM_NTASKS_PER_NODE"] = options["ntasks-per-node"]
    _become(words, {**step, **more}, options.get("chdir"))


def _mpirun(name: str, args: List[str]) -> int:
    at, more, folder, tasks = 0, {}, None, None
    while at < len(args) and args[at].startswith("-") and args[at] != "--":
        option = args[at].lstrip("-")
        takes = _values_after(option, args[at + 1 : at + 2])
        values = args[at + 1 : at + 1 + takes]
        if option in ("n", "np", "c") and values:
            tasks = values[0]
        elif option in ("genv", "env") and takes == 2:
            more[values[0]] = values[-1]
        elif option == "x" and values and "=" in values[0]:
            key, _, more_value = values[0].partition("=")
            more[key] = more_value
        elif option in ("wd", "wdir") and values:
            folder = values[0]
        at += 1 + takes
    at += 1 if at < len(args) and args[at] == "--" else 0
    words = _first_component(args[at:])
    if not words:
        return 0
    size = str(_number(tasks) or 1)
    first = {"RANK": "0", "SIZE": size, "LOCAL_RANK": "0", "LOCAL_SIZE": size}
    ranks = {f"OMPI_COMM_WORLD_{key}": value for key, value in first.items()}
    _become(words, {**ranks, "PMI_RANK": "0", "PMI_SIZE": size, LAUNCHED: size, **more}, folder)


def _values_after(option: str, following: List[str]) -> int:
    """How many words an option of a launcher takes; one that is not known takes what is no program."""
    if "=" in option:
        return 0
    if option in _TWO_VALUES:
        return 2
    if option in _ONE_VALUE:
        return 1
    unknown_value = following and not following[0].startswith("-") and shutil.which(following[0]) is None
    return 1 if unknown_value else 0


def _first_component(words: List[str]) -> List[str]:
    """Up to a ":", behind which other programs of the same launch stand."""
    return words[: words.index(":")] if ":" in words else words


# -- Answers -------------------------------------------------------------------------------------


def _nvidia_smi(name: str, args: List[str]) -> int:
    gpu = GpuFacts.from_json(os.environ.get("GPUMEM_TRACE_GPU", ""))
    query = _value(args, "--query-gpu")
    if query is not None:
        fields = query.split(",")
        layout = _value(args, "--format") or "csv"
        values = [_QUESTIONS.get(field.strip(), _not_known)(gpu) for field in fields]
        if "nounits" in layout:
            values = [value.split()[0] if value.endswith((" MiB", " %", " W")) else value for value in values]
        print("" if "noheader" in layout else ", ".join(fields) + "\n", end="")
        for number in range(gpu.gpus):
            row = [str(number) if field.strip() == "index" else value for field, value in zip(fields, values)]
            print(", ".join(row))
    elif any(arg.startswith("--query") for arg in args):
        pass  # processes: none
    elif "-L" in args or "--list-gpus" in args:
        print("\n".join(f"GPU {number}: {gpu.name} (UUID: {_UUID})" for number in range(gpu.gpus)))
    else:
        total = gpu.memory_bytes >> 20
        print(
            f"| NVIDIA-SMI (traced, no GPU is here)\n|   0  {gpu.name}  |  0MiB / {total}MiB |  0%  Default |"
        )
    return 0


def _value(args: List[str], name: str) -> Optional[str]:
    for at, arg in enumerate(args):
        if arg.startswith(name + "="):
            return arg[len(name) + 1 :]
        if arg == name and at + 1 < len(args):
            return args[at + 1]
    return None


def _scontrol(name: str, args: List[str]) -> int:
    words = [arg for arg in args if not arg.startswith("-")]
    if words[:1] == ["show"] and len(words) > 1 and words[1].startswith("hostname"):
        print("\n".join(["localhost"] * (_number(os.environ.get("SLURM_NNODES")) or 1)))
    elif words[:1] != ["show"]:
        _recorded(name, args)
    return 0


def _submission(name: str, args: List[str]) -> int:
    _recorded(name, args)
    number = int(os.environ.get("SLURM_JOB_ID") or 0) + 1
    print(number if "--parsable" in args else f"Submitted batch job {number}")
    return 0


def _silence(name: str, args: List[str]) -> int:
    """For what asks Slurm: there is nothing to say of a job that does not exist yet."""
    return 0


def _record_only(name: str, args: List[str]) -> int:
    if name in ("mail", "mailx", "sendmail") and not sys.stdin.isatty():
        sys.stdin.buffer.read()
    _recorded(name, args)
    return 0


def _sbcast(name: str, args: List[str]) -> int:
    files = [arg for arg in args if not arg.startswith("-")]
    if len(files) >= 2:
        shutil.copy(files[0], files[1])
    return 0


def _by_name() -> Dict[str, Callable[[str, List[str]], int]]:
    rows: Tuple[Tuple[Callable[[str, List[str]], int], str], ...] = (
        (_srun, "srun"),
        (_mpirun, "mpirun mpiexec mpiexec.hydra orterun prun"),
        (_nvidia_smi, "nvidia-smi"),
        (_scontrol, "scontrol"),
        (_submission, "sbatch gpusbatch"),
        (_record_only, "salloc gpusalloc gpusrun scancel scrontab strigger mail mailx sendmail"),
        (_silence, "squeue sacct sinfo sstat sprio sshare sattach"),
        (_sbcast, "sbcast"),
    )
    return {name: answer for answer, names in rows for name in names.split()}


ANSWERS = _by_name()

if __name__ == "__main__":
    sys.exit(ANSWERS[sys.argv[1]](sys.argv[1], sys.argv[2:]))
