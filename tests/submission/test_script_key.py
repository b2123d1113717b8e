"""Runs of one script that need the same memory have the same key; what changes the memory changes the key."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.slurm.submit.gpu_options import merge_wishes
from slurm_gpumem.slurm.submit.sbatch_options import CommandLine, Option
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.job.script_key import script_key, why_never_same
from slurm_gpumem.submission.job.settings import JobSettings, OwnOptions
from slurm_gpumem.submission.submission import RawInput, Submission, key_of_script

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
        ("width=128", "width=128 2> /scratch/d/log >>/scratch/e"),
        ("WANDB_NAME=one", "WANDB_NAME=two"),
        ("SEED=1", "SEED=2"),
        ("--job-name=first --time=10", "--job-name=second --time=20"),
        ("module load cuda", "# why\nmodule load   cuda"),
    ],
)
def test_seeds_rates_epochs_names_and_where_results_go_do_not_count(old: str, new: str) -> None:
    assert old in SCRIPT
    assert key(SCRIPT.replace(old, new)) == key()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--batch-size 64", "--batch-size 128"),
        ("width=128", "width=256"),
        ("train.py", "finetune.py"),
        ("--batch-size 64", "--batch-size 64 --amp"),
        ("/home/me/v1/train.py", "/home/me/v2/train.py"),  # which nobody can read here
        ("python /home/me/v1/train.py", "./other"),
        ("--lr 0.1", "--lr 0.1 --rollout-steps 800"),
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
        ("--data-dir /data/cifar10/train", "--data-dir /data/imagenet/train"),
        ("--root /data/cifar10", "--root /data/imagenet"),
        ("--image_dir=/data/cifar10", "--image_dir=/data/imagenet"),
        ("--out-channels 64", "--out-channels 512"),
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
    "option",
    [
        "--save-model-path",
        "--output_model_dir",
        "--model_out",
        "--workdir",
        "--ckpt_path",
    ],
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
    assert key(args=[str(tmp_path / "pipe.py")]) == key(args=[str(tmp_path / "copy" / ".." / "pipe.py")])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("./small", "./huge"),
        ("python tune.py org/model-7b", "python tune.py org/model-70b"),
        ("python tune.py /data/small/a.bin", "python tune.py /data/large/a.bin"),
        ("python t.py --shape=8/8", "python t.py --shape=512/8"),
        ("python t.py $((64/2))", "python t.py $((8/2))"),
        ("python t.py --verbose small.py", "python t.py --verbose large.py"),
        ("python t.py --resume conf/a.yaml", "python t.py --resume conf/b.yaml"),
        ("python t.py ${1##*/} --batch 8", "python t.py ${1##*/} --batch 64"),
        ("python t.py --device cpu", "python t.py --device cuda"),
        ("python src/train.py experiment=small", "python src/train.py experiment=huge"),
        ("python tools/train.py --name yolox-s", "python tools/train.py --name yolox-x"),
        ("NAME=resnet18; python t.py --model $NAME", "NAME=vit; python t.py --model $NAME"),
        ("cd /nowhere/a\npython train.py", "cd /nowhere/b\npython train.py"),
        ("cd /nowhere/a && ./run", "cd /nowhere/b && ./run"),
    ],
)
def test_other_programs_models_and_data_are_other_jobs(one: str, other: str) -> None:
    text = "#!/bin/sh\n{}\n"
    assert key(text.format(one)) == key(text.format(one + " # why"))
    assert key(text.format(one)) != key(text.format(other))
    assert key(args=one.split()) != key(args=other.split())


def test_a_program_is_read_in_the_folder_where_the_job_is(tmp_path: Path) -> None:
    texts = [
        "cd {}\npython train.py",
        "P={}\npython $P/train.py",
        "cd {}; python -m train",
        "python {}/train.py",
        "python {}/train.py>log",
        "sh -c 'cd {} && python \"train.py\" -b 3'",
        "(cd {}; python train.py)&",
        "srun python {}/train.py|tee log",
    ]
    for folder, size in (("a", 8), ("b", 16), ("c", 8)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(f"batch = {size}")
    for text in texts[:1] + texts[2:]:
        a, b, c = (key("#!/bin/sh\n" + text.format(tmp_path / name)) for name in "abc")
        assert a == c != b
    assert len({key("#!/bin/sh\n" + texts[1].format(tmp_path / name)) for name in "ab"}) == 2
    a, b, c = (script_key("python train.py", (), {}, folder=str(tmp_path / name)) for name in "abc")
    assert a == c != b
    env = {"P": str(tmp_path / "a")}
    before = script_key("python $P/train.py", (), env)
    (tmp_path / "a" / "train.py").write_text("batch = 9")
    assert script_key("python $P/train.py", (), env) != before


@pytest.mark.parametrize(
    "reads",
    ['os.environ["BATCH"]', "os.environ.get('BATCH', 8)", 'os.getenv("BATCH")', "${oc.env:BATCH}", "$BATCH"],
)
def test_a_variable_that_a_named_file_reads_counts(tmp_path: Path, reads: str) -> None:
    (tmp_path / "train.py").write_text(reads)
    for text in (f"python {tmp_path}/train.py", f"#!/usr/bin/python3\n{reads}"):
        assert key(text, BATCH="8", OTHER="1") == key(text, BATCH="8", OTHER="2")
        assert key(text, BATCH="8") != key(text, BATCH="64")
    assert key(PYTORCH_CUDA_ALLOC_CONF="a") != key(PYTORCH_CUDA_ALLOC_CONF="b")


def test_tasks_that_share_a_gpu_count() -> None:
    assert len({script_key(SCRIPT, (), {}, ranks=ranks) for ranks in (1, 2, 4)}) == 3


@pytest.mark.parametrize(
    "text",
    [
        "jupyter lab --ip=0.0.0.0",
        "srun batchspawner-singleuser jupyterhub-singleuser",
        "/opt/code-server/bin/code-server --port 80",
        "vncserver -log x",
        "create_yml () {",
        "python -u -m submitit.core._submit /home/me/log",
        "bash /scratch/ab/12/.command.run",
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


def test_options_that_change_what_a_job_sees_or_how_often_it_runs_count(tmp_path: Path) -> None:
    script = BatchScript("job.sh", "job.sh", b"#!/bin/sh\npython train.py --batch $BATCH\n")

    def of(**options: str) -> str:
        given = tuple(Option(name.replace("_", "-"), value, ()) for name, value in options.items())
        raw = RawInput(CommandLine(given, "job.sh", (), False), OwnOptions({}), script, plain=True)
        return key_of_script(Submission(raw, JobSettings({}), options=merge_wishes(given, {}, ())))

    assert of(comment="x", time="3", nice="5") == of()
    assert len({of(), of(export="ALL,BATCH=8"), of(export="ALL,BATCH=64")}) == 3
    assert len({of(), of(chdir=str(tmp_path))}) == 2
    assert len({of(nodes="1", ntasks="1"), of(nodes="1", ntasks="4")}) == 2


def test_of_a_script_of_megabytes_every_character_counts() -> None:
    long = "#!/bin/sh\n" + "python train.py --x 3 # it's\n" * 60_000
    assert key(long) == key(long)
    assert key(long) != key(long + "# more\n")


def test_no_text_is_an_error() -> None:
    for name in ("log-" * 15_000, "out.x_" * 10_000, "train-" * 10_000 + "dir"):
        assert key(args=[f"--{name}", f"--{name}=1"]) != key(args=[f"--{name}=1"])
    bits = [
        "cd",
        "~",
        "~x/",
        "$A",
        "${A",
        "}",
        "'",
        '"',
        "\\",
        " #",
        "\n",
        " ",
        "-m",
        "=",
        "../",
        "a.py",
        ">",
        "2>&1",
    ]
    for seed in range(300):
        chosen = random.Random(seed)
        text = "".join(chosen.choice([*bits, ";", "(", "--lr", "--model", "\0", "\udcff"]) for _ in range(60))
        assert key(text, [text[:9]], A=text[:5].replace("\0", "")).startswith("s")


def test_a_folder_that_was_removed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert key() == key()
