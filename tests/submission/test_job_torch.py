"""Which PyTorch a job has, from the environment that it runs in."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional

import pytest

from slurm_gpumem.slurm.submit.gpu_options import OptionValue, Wishes
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.job.job_torch import torch_of_job

WHEEL = "__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\ngit_version = 'x'\n"
CONDA = "__version__ = '2.3.1'\ncuda = '11.8'\n"
CPU = "__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n"


def environment(folder: Path, text: str) -> str:
    torch = folder / "lib" / "python3.11" / "site-packages" / "torch"
    torch.mkdir(parents=True)
    (torch / "version.py").write_text(text)
    return str(folder)


def found(environ: Dict[str, str], *lines: str, **options: str) -> Optional[str]:
    script = BatchScript("job.sh", "job.sh", "\n".join(("#!/bin/bash", *lines)).encode())
    wishes = Wishes({name: OptionValue(value, "") for name, value in options.items()})
    seen = torch_of_job(environ, script, wishes)
    return seen and seen[0]


@pytest.mark.parametrize(
    ("text", "version"), [(WHEEL, "2.6.0+cu124"), (CONDA, "2.3.1+cu118"), (CPU, None), ("", None)]
)
def test_an_active_environment_names_its_pytorch_and_cuda(
    tmp_path: Path, text: str, version: Optional[str]
) -> None:
    folder = environment(tmp_path / "env", text)
    assert found({"VIRTUAL_ENV": folder}, "python train.py") == version
    assert found({"CONDA_PREFIX": folder}, "python train.py") == version
    assert found({"VIRTUAL_ENV": folder}, "python train.py", export="NONE") is None


@pytest.mark.parametrize(
    "line",
    [
        "source {}/bin/activate",
        ". '{}/bin/activate'; python train.py",
        "cd run && source {}/bin/activate && python train.py",
        "conda activate {}",
        "srun {}/bin/python train.py",
        "{}/bin/torchrun train.py",
    ],
)
def test_what_the_script_activates_counts_before_what_is_active(tmp_path: Path, line: str) -> None:
    active, own = environment(tmp_path / "active", WHEEL), environment(tmp_path / "own", CONDA)
    assert found({"VIRTUAL_ENV": active}, line.format(own)) == "2.3.1+cu118"


def test_an_environment_that_conda_knows_by_name(tmp_path: Path) -> None:
    environment(tmp_path / "conda" / "envs" / "train", WHEEL)
    lines = ("conda activate train", "python train.py")
    assert found({"CONDA_EXE": f"{tmp_path}/conda/bin/conda"}, *lines) == "2.6.0+cu124"
    assert found({}, *lines) is None


@pytest.mark.parametrize(
    "line",
    [
        "module load pytorch/1.12",
        "apptainer exec --nv image.sif python train.py",
        "srun --container-image=nvcr.io/x python train.py",
        "source $ENV/bin/activate",
        "uv run train.py",
        "conda activate elsewhere",
    ],
)
def test_a_job_whose_software_comes_from_elsewhere_says_nothing(tmp_path: Path, line: str) -> None:
    assert found({"VIRTUAL_ENV": environment(tmp_path / "env", WHEEL)}, line, "python train.py") is None


def test_a_folder_that_is_none_and_a_file_that_is_too_long_say_nothing(tmp_path: Path) -> None:
    assert found({"VIRTUAL_ENV": "/nonexistent"}, "python train.py") is None
    long = environment(tmp_path / "env", "#" * 10_000 + "\n" + WHEEL)
    assert found({"VIRTUAL_ENV": long}, "python train.py") is None
    assert found({"VIRTUAL_ENV": f"{tmp_path}/[ab]*"}, "python train.py") is None
