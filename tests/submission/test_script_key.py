"""Runs of one script that need the same memory have the same key; what changes the memory changes the key."""

from __future__ import annotations

from typing import List

import pytest

from slurm_gpumem.submission.job.script_key import is_session, script_key

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
    ("line", "session"),
    [
        ("jupyter lab --no-browser", True),
        ("exec /opt/env/bin/jupyter-notebook", True),
        ("  srun batchspawner-singleuser jupyterhub-singleuser", True),
        ("code-server --port 80", True),
        ("# jupyter lab", False),
        ("python train.py --name screen.v2", False),
        ("python /home/me/jupyter/train.py", False),
        ("jupyter=1 python train.py", False),
        ("cd screen/run && python train.py", False),
    ],
)
def test_what_somebody_types_into_is_a_session(line: str, session: bool) -> None:
    assert is_session(f"#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\n{line}\n") is session
