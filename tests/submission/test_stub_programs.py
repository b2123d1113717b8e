"""Launchers and Slurm's programs while a batch script is traced; WRITE=1 keeps a wanted change."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict

from slurm_gpumem.submission.job_trace import stub
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from tests.support.kept import assert_kept

SHOW = """#!/bin/sh
pwd; env | grep -E '^(SLURM|OMPI|PMI|GPUMEM_TRACE_L|A|B)[A-Z_]*=' | sort; echo "$@"
"""
LINES = (
    *(
        f"{launcher} {options} show more words"
        for launcher, options in (
            ("srun", ""),
            ("srun", "-n 4"),
            ("srun", "-N 2 --ntasks-per-node=3"),
            ("srun", "--ntasks-per-node 3 --chdir=sub --export=ALL,A=1,B=x=y"),
            ("srun", "--cpu-bind=none -l --nodes=x"),
            ("mpirun", ""),
            ("mpirun", "-np 8 --bind-to none -x A=1 -x B"),
            ("mpiexec", "-n 2 -genv A 1 -env B 2 -wdir sub"),
            ("mpirun", "--mca btl self --wd sub -c 3"),
            ("orterun", "-np x --unknown-option 7 --other=8 --tag-output --"),
            ("mpirun", "-x B=1=2 --oversubscribe"),
        )
    ),
    "mpirun -n 1 show it : -n 2 other",
    "srun -n 1 show it : -n 2 other",
    "mpirun -n 2",
    "srun --version",
    "srun --multi-prog tasks.conf",
    "srun no-such-program",
    "mpirun ./not-executable",
    "nvidia-smi",
    "nvidia-smi -L",
    "nvidia-smi --query-gpu=name,index,uuid,count,memory.total,memory.free,memory.used,utilization.gpu "
    "--format=csv",
    "nvidia-smi --query-gpu compute_cap,driver_version,power.draw,temperature.gpu,fan.speed "
    "--format=csv,noheader,nounits",
    "nvidia-smi --query-compute-apps=pid --format=csv",
    "scontrol show hostnames n[1-4]",
    "scontrol --oneliner show job 7",
    "scontrol requeue 7",
    "sbatch next.sh",
    "sbatch --parsable --dependency=afterok:7 next.sh",
    "gpusbatch next.sh",
    "scancel 7",
    "scancel " + "12345 " * 20,
    "echo body | mail -s ready me@example.org",
    "squeue --me",
    "sinfo",
    "sbcast a b",
    "sbcast --force a b && cat b",
)


def test_programs_of_a_traced_script_do_what_they_did(tmp_path: Path) -> None:
    gpu = GpuFacts("NVIDIA A100", 40 << 30, (8, 0), 108, gpus=2).to_json()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in stub.ANSWERS:
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{stub.__file__}" {name} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "show").write_text(SHOW)
    (programs / "show").chmod(0o755)

    def done(number: int) -> Dict[str, str]:
        """What it printed, how it ended, and what the trace is told."""
        folder = tmp_path / str(number)
        (folder / "sub").mkdir(parents=True)
        (folder / "report").mkdir()
        (folder / "a").write_text("text of a\n")
        (folder / "not-executable").write_text("")
        ran = subprocess.run(
            ["/bin/sh", "-c", LINES[number]],
            cwd=folder, capture_output=True, text=True, check=False, timeout=60,
            env={
                "PATH": f"{programs}:/usr/bin:/bin", "GPUMEM_TRACE_DIR": str(folder / "report"),
                "GPUMEM_TRACE_GPU": gpu, "SLURM_JOB_ID": "41", "SLURM_NNODES": "2", "SLURM_NTASKS": "6",
            },
        )  # fmt: skip
        told = "".join(file.read_text() for file in sorted((folder / "report").rglob("*")) if file.is_file())
        texts = {"exit": str(ran.returncode), "out": ran.stdout, "error": ran.stderr, "told": told}
        return {
            f"{LINES[number]} [{key}]": re.sub(r'"pid": \d+, ', "", text.replace(str(folder), "HERE"))
            for key, text in texts.items()
            if text
        }

    with ThreadPoolExecutor(4) as pool:
        found = {name: text for texts in pool.map(done, range(len(LINES))) for name, text in texts.items()}
    assert_kept(Path(__file__).with_name("stub_programs.json"), found)
