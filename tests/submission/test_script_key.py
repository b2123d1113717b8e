"""Runs of one script that need the same memory have the same key; what changes the memory changes the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.submission.job.script_key import script_key, why_never_same

SCRIPT = """#!/bin/bash
#SBATCH --job-name=first --time=10
module load cuda
export WANDB_NAME=one
SEED=1
python /home/me/v1/train.py --batch-size 64 --lr 0.1 --seed 3 --epochs 90 --out /scratch/a width=128 "$@"
"""


def key(text: str = SCRIPT, args: List[str] = [], **environ: str) -> str:  # noqa: B006 - never changed
    return script_key(text, args, environ)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--lr 0.1", "--lr 3e-4"),
        ("--seed 3", "--seed=4"),
        ("--epochs 90", "--epochs 1"),
        ("--out /scratch/a", "--out /scratch/b/c"),
        ("/home/me/v1/train.py", "/home/me/v2/train.py"),
        ("WANDB_NAME=one", "WANDB_NAME=two"),
        ("SEED=1", "SEED=2"),
        ("--job-name=first --time=10", "--job-name=second --time=20"),
        ("module load cuda", "# why\nmodule load   cuda"),
    ],
)
def test_seeds_rates_epochs_paths_and_names_do_not_count(old: str, new: str) -> None:
    assert old in SCRIPT
    assert key(SCRIPT.replace(old, new)) == key()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--batch-size 64", "--batch-size 128"),
        ("width=128", "width=256"),
        ("train.py", "finetune.py"),
        ("--batch-size 64", "--batch-size 64 --amp"),
    ],
)
def test_every_other_number_and_word_counts(old: str, new: str) -> None:
    assert key(SCRIPT.replace(old, new)) != key()


def test_arguments_count_by_the_same_rules() -> None:
    assert key(args=["--seed", "1"]) == key(args=["--seed", "2"])
    assert key(args=["--layers", "12"]) != key(args=["--layers", "24"])


def test_a_variable_that_the_script_reads_counts_unless_slurm_sets_it() -> None:
    text = SCRIPT + "python train.py --batch $BATCH --task $SLURM_ARRAY_TASK_ID --seed $RUN_SEED\n"
    assert key(text, BATCH="8") != key(text, BATCH="16")
    assert key(text, BATCH="8", RUN_SEED="1") == key(text, BATCH="8", RUN_SEED="2")
    assert key(text, BATCH="8", SLURM_ARRAY_TASK_ID="1") == key(text, BATCH="8", OTHER="2")


def test_a_quote_over_several_lines_is_no_obstacle() -> None:
    assert key("#!/bin/sh\npython -c '\nimport x\n' --batch 3\n") != key(
        "#!/bin/sh\npython -c '\nimport x\n' --batch 4\n"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--model_name_or_path org/small-7b", "--model_name_or_path org/large-70b"),
        ("--model-name resnet18", "--model-name resnet152"),
        ("--dataset_name wikitext", "--dataset_name c4"),
        ("--data /data/cifar10", "--data /data/imagenet/"),
        ("--data-dir=/data/cifar10", "--data-dir=/data/imagenet"),
        ("model.path=/models/a", "model.path=/models/b"),
        ("--config configs/small.yaml", "--config configs/large.yaml"),
        ("configs/small.yaml", "configs/large.yaml"),
        ("TASK_NAME=sst2", "TASK_NAME=qnli"),
    ],
)
def test_names_and_paths_of_models_data_and_configurations_count(one: str, other: str) -> None:
    assert key(args=one.split()) == key(args=one.split())
    assert key(args=one.split()) != key(args=other.split())


@pytest.mark.parametrize(
    "option", ["--save-model-path", "--output_model_dir", "--log-config-name", "--model_out"]
)
def test_where_a_model_is_written_to_does_not_count(option: str) -> None:
    assert key(args=[option, "/scratch/a"]) == key(args=[option, "/scratch/b"])


@pytest.mark.parametrize("name", ["run.yaml", "train.py", "Snakefile"])
def test_what_a_named_file_holds_counts_and_its_folder_does_not(tmp_path: Path, name: str) -> None:
    (tmp_path / "copy").mkdir()
    file, copy = tmp_path / name, tmp_path / "copy" / name
    keys = {key(args=["--config", str(file)])}
    for size in (8, 16):
        file.write_text(f"batch: {size}\n")
        keys |= {key(args=["--config", str(file)]), key(args=[str(file)]), key(args=[f"cfg={file}"])}
    assert len(keys) == 7
    copy.symlink_to(file)
    assert key(args=[str(copy)]) == key(args=[str(file)])
    os.mkfifo(tmp_path / "pipe.py")
    assert key(args=[str(tmp_path / "pipe.py")]) == key(args=["pipe.py"])


@pytest.mark.parametrize(
    "text",
    [
        "jupyter lab --ip=0.0.0.0",
        "srun batchspawner-singleuser jupyterhub-singleuser",
        "/opt/code-server/bin/code-server --port 80",
        "vncserver -log x",
        "create_yml () {",
        "python -u -m submitit.core._submit /home/me/log",
        "bash /work/ab/12/.command.run",
    ],
)
def test_where_somebody_works_or_a_file_says_what_runs_no_two_runs_are_alike(text: str) -> None:
    assert why_never_same(f"#!/bin/sh\n{text}\n", (), pty=False)
    assert not why_never_same(f"#!/bin/sh\n# {text}\npython train.py\n", (), pty=False)


def test_a_shell_is_no_known_job() -> None:
    assert why_never_same("", ("/bin/bash",), pty=False)
    assert why_never_same("", ("python", "train.py"), pty=True)
    assert not why_never_same("", ("bash", "job.sh"), pty=False)
    assert not why_never_same("jupyter nbconvert --execute a.ipynb\npython server.py", (), pty=False)
