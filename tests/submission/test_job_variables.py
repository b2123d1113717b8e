"""Variables of PyTorch and CUDA in the environment and in scripts."""

from __future__ import annotations

from slurm_gpumem.config.load import Config
from slurm_gpumem.slurm.submit.gpu_options import OptionValue, Wishes
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.job.job_variables import job_environment
from slurm_gpumem.submission.job.settings import OwnOptions, job_settings


def script(*lines: str) -> BatchScript:
    return BatchScript("job.sh", "job.sh", "\n".join(("#!/bin/bash", *lines)).encode())


def test_an_export_line_counts_more_than_the_environment() -> None:
    found = job_environment(
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
        script('export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"', "python train.py"),
    ).found
    assert found == {"alloc-conf": ("expandable_segments:True", "job.sh, line 2")}


def test_a_variable_before_the_command_and_one_of_a_comment() -> None:
    found = job_environment(
        {}, script("# export CUDA_MODULE_LOADING=EAGER", "CUBLAS_WORKSPACE_CONFIG=:4096:8 python train.py")
    ).found
    assert found == {"cublas-workspace": (":4096:8", "job.sh, line 3")}


def test_what_cannot_be_read_is_said() -> None:
    variables = job_environment({}, script("export PYTORCH_ALLOC_CONF=$CONF"))
    assert variables.found == {}
    assert "job.sh, line 2 sets PYTORCH_ALLOC_CONF=$CONF, which cannot be read here" in variables.remarks[0]


def test_a_job_that_takes_no_environment_has_only_its_own_variables() -> None:
    environ = {"CUDA_MODULE_LOADING": "EAGER"}
    assert job_environment(environ).found == {
        "module-loading": ("eager", "CUDA_MODULE_LOADING (environment)")
    }
    options = Wishes({"export": OptionValue("NONE", "command line")})
    assert job_environment(environ, None, options).found == {}
    options = Wishes({"export": OptionValue("NIL,CUBLAS_WORKSPACE_CONFIG=:16:8", "command line")})
    assert job_environment(environ, None, options).found == {"cublas-workspace": (":16:8", "--export")}


def test_what_is_stated_about_the_job_counts_before_its_variables() -> None:
    variables = job_environment({"CUDA_MODULE_LOADING": "EAGER", "CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    stated = job_settings(Config(), (), {}, OwnOptions({"module-loading": "lazy"})).under(variables)
    assert stated.stated_training().module_loading == "lazy"
    assert stated.stated_training().cublas_workspace == ":16:8"
    assert job_settings(Config(), (), {}, OwnOptions({})).under(variables).text("module-loading") == "eager"
