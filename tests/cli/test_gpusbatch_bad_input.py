"""Bad input: what was wrong, where, how to mend it; exit 2, nothing submitted, never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any, List

import pytest

from tests.cli.conftest import GPUSBATCH


def refused(done: Any, *messages: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("gpumem: ")
    assert len(done.stderr.splitlines()) <= 4
    for message in messages:
        assert re.search(message, done.stderr), done.stderr


def test_a_missing_summary_is_named(bare_desk: Any) -> None:
    refused(bare_desk.call("job.sh", "--model", "none.txt", "--batch-size", "8"), r"none\.txt: no such file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x7fELF\x00\x00", "binary"),
        (b"import torch\nx = 1\n", "not a model summary|Python code"),
    ],
)
def test_a_file_that_is_no_summary_is_refused(bare_desk: Any, content: bytes, message: str) -> None:
    (bare_desk.folder / "odd.txt").write_bytes(content)
    refused(bare_desk.call("job.sh", "--model", "odd.txt", "--batch-size", "8"), rf"odd\.txt: .*({message})")


def test_a_summary_of_100_mb_is_refused_without_reading_it_all(bare_desk: Any) -> None:
    with open(bare_desk.folder / "huge.txt", "wb") as file:
        file.truncate(100 * 1000 * 1000)
    refused(bare_desk.call("job.sh", "--model", "huge.txt", "--batch-size", "8"), "huge.txt: larger than")


def test_a_folder_for_a_summary_is_refused(bare_desk: Any) -> None:
    refused(bare_desk.call("job.sh", "--model", ".", "--batch-size", "8"), "is a directory")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--modle", "summary.txt", "--dry-run"], "Did you mean --model"),
        (["--modle", "summary.txt"], "Did you mean --model"),
        (["--dry-rn"], "Did you mean --dry-run"),
        (["--epochs", "3", "--dry-run"], "--dry-run is an option: write it before --epochs"),
        (["data.txt", "--gpu-mem=12G"], "--gpu-mem is an option: write it before data.txt"),
    ],
)
def test_a_slip_behind_the_script_submits_nothing(bare_desk: Any, words: List[str], message: str) -> None:
    refused(bare_desk.call("job.sh", *words), message)


def test_arguments_of_the_script_that_are_no_slips_are_left_alone(bare_desk: Any) -> None:
    for args in (["--", "--modle", "x", "--dry-run"], ["--epochs", "3"], ["--lr", "0.1", "-v", "data"]):
        done = bare_desk.call("--dry-run", "job.sh", *args)
        assert (done.returncode, done.stderr) == (0, ""), args


def test_no_batch_size_anywhere_is_told_with_the_ways_to_give_one(bare_desk: Any) -> None:
    refused(bare_desk.call("job.sh", "--model", "summary.txt"), "no batch size", "--batch-size 128")
    bare_desk.script("two.sh", "python a.py --batch-size 8\npython a.py --batch-size $2")
    refused(
        bare_desk.call("two.sh", "--model", "summary.txt"),
        "not clear: .*line 3 has --batch-size 8, .*line 4 has --batch-size \\$2",
        "--batch-size 128",
    )


def test_a_missing_script_is_named(bare_desk: Any) -> None:
    refused(
        bare_desk.call("none.sh", "--model", "summary.txt", "--batch-size", "8"),
        r"none\.sh: the job script cannot be read",
    )


def test_an_option_that_took_the_script_for_its_value_does_not_wait_for_stdin(
    bare_desk: Any,
) -> None:
    with subprocess.Popen(
        [GPUSBATCH, "--model", "job.sh"],
        cwd=bare_desk.folder,
        env=bare_desk.environment(None),
        stdin=subprocess.PIPE,  # open, and nothing ever comes
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.wait(timeout=120) == 2
        assert child.stderr is not None
        assert "--model job.sh: this is a job script, and none is left to submit" in child.stderr.read()


def test_a_script_without_an_interpreter_line_is_refused(bare_desk: Any) -> None:
    (bare_desk.folder / "odd.sh").write_text("echo hi\n")
    refused(
        bare_desk.call("odd.sh", "--gpu-mem", "4G"),
        "odd.sh: a job script must begin with #!",
        "Add #!/bin/bash",
    )


@pytest.mark.slurm
def test_an_unknown_directive_is_a_warning_with_its_line_and_the_job_goes_on(desk: Any) -> None:
    desk.script("job.sh", "true", "#GPUMEM mem=4G batchsize=8")
    done = desk.call("--parsable", "-H", "job.sh")
    assert done.returncode == 0
    desk.jobs.append(done.stdout.strip())
    assert (
        "gpumem: warning: job.sh, line 2: unknown key 'batchsize' (did you mean 'batch-size'?)" in done.stderr
    )


@pytest.mark.slurm
def test_a_site_file_with_keys_that_are_gone_is_one_warning_and_the_job_is_submitted(desk: Any) -> None:
    site = desk.folder / "gpumem.toml"
    site.write_text(
        '[sharing]\nutilization = "ignore"\n[text]\nunknown = "ask"\n[job]\nbatch-size = 8\n'
        '[trace]\nunfinished = "ask"\n[node]\ngrace_s = 2\n[slots]\nleast_s = 9\n[accounting]\nindex = "x"\n'
    )
    env = {"GPUMEM_SITE_CONFIG": str(site)}
    done = desk.call("--parsable", "-H", "job.sh", "--gpu-mem", "4G", env=env)
    assert done.returncode == 0, done.stderr
    desk.jobs.append(done.stdout.strip())
    assert desk.gres(done.stdout.strip()) == "shard:4"
    said = " ".join(done.stderr.split())
    assert said.count("warning: ") == 1
    assert (
        "gpumem.toml: no longer settings, and without effect: sharing.utilization, text.unknown, "
        "job.batch-size, trace.unfinished, node.grace_s, slots.least_s, accounting.index; remove "
        'those lines; utilization = "ignore" is now max_slowdown = 100; write what a job says of itself into '
        "its script (#GPUMEM)"
    ) in said


@pytest.mark.slurm
def test_directives_that_ask_for_nothing_are_a_warning(desk: Any) -> None:
    desk.script("job.sh", "true", "#GPUMEM optimizer=sgd")
    done = desk.call("--parsable", "-H", "job.sh")
    desk.jobs.append(done.stdout.strip())
    assert "model= or mem= ask for nothing" in done.stderr
    assert desk.gres(done.stdout.strip()) == ""


@pytest.mark.slurm
def test_an_old_memory_line_is_one_warning_and_the_job_goes_as_without_it(desk: Any) -> None:
    line = "memory-line=1/ac00cd478b3c4d5e/corrected/adam.fp32/both.100.100/128/32,3576,5099"
    told = {}
    for head in (f"#GPUMEM batch-size=128 {line}", "# nothing", f"#GPUMEM {line} mem=5G", "#GPUMEM mem=5G"):
        desk.script("job.sh", "true", f"#SBATCH --gres=gpu:1\n{head}")
        done = desk.call("--dry-run", "job.sh")
        assert done.returncode == 0, done.stderr
        told[head] = (done.stdout, [one for one in done.stderr.splitlines() if "warning: " in one])
    without_share, without, with_mem, mem = told.values()
    for old, new in ((without_share, without), (with_mem, mem)):
        assert old[0] == new[0]
        assert len(old[1]) == 1 + len(new[1])
        assert "job.sh, line 3: memory-line= is ignored; write #GPUMEM model=summary.txt" in old[1][0]


def test_a_batch_beyond_all_memory_is_told_without_a_traceback(desk: Any) -> None:
    done = desk.call("job.sh", "--model", "summary.txt", "--batch-size", "99999999999999")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not fit the largest GPU of partition gpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_warning_is_told_before_the_error_it_may_explain(bare_desk: Any) -> None:
    done = bare_desk.call("job.sh", "--model", "summary.txt", env={"GPUMEM_BATCHSIZE": "8"})
    refused(done, "warning: .*GPUMEM_BATCHSIZE is not known(.|\n)*no batch size")


def test_options_about_a_model_that_is_missing_are_refused(bare_desk: Any) -> None:
    refused(bare_desk.call("job.sh", "--batch-size", "8"), "--batch-size .* there is none", "Add --model")
    refused(bare_desk.call("job.sh", "--explain"), "--explain has nothing to show")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["job.sh", "--model"], "--model needs a value"),
        (["job.sh", "--model="], "--model needs a value"),
        (["job.sh", "--dry-run=yes"], "--dry-run takes no value"),
        (["job.sh", "--gpu-mem", "many"], "--gpu-mem: 'many' is not a memory size"),
        (["job.sh", "--gpu-mem", "4G", "--json", "--parsable"], "--json and --parsable"),
    ],
)
def test_wrong_usage_is_told(bare_desk: Any, argv: List[str], message: str) -> None:
    refused(bare_desk.call(*argv), message)


def test_without_slurm_on_the_path_it_says_so(bare_desk: Any) -> None:
    nowhere = {"PATH": str(bare_desk.folder)}
    refused(bare_desk.call("job.sh", "--gpu-mem", "4G", env=nowhere), "scontrol: not found on the PATH")
    refused(bare_desk.call("job.sh", env=nowhere), "sbatch: not found on the PATH")
    refused(bare_desk.call("job.sh", env={"PATH": "/dev/null"}), "sbatch: ")


@pytest.mark.slurm
def test_a_controller_that_is_down_is_told_and_sbatch_refuses_in_its_own_words(
    make_cluster: Any, desk_at: Any
) -> None:
    desk = desk_at(make_cluster())
    desk.cluster.stop()
    done = desk.call("job.sh", "--gpu-mem", "4G", timeout_s=120)
    assert "no answer from the Slurm controller within 3 s; try `scontrol ping`" in done.stderr
    assert "sbatch: error" in done.stderr
    assert done.returncode == 1


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("head", "gres", "said"),
    [
        (
            "#SBATCH --gres=gpu:1",
            "gpu:1",
            "goes to sbatch as it is: its share of a GPU was not decided",
        ),
        ("", "gpu:1", "The job asks for a whole GPU instead of a part"),
    ],
)
def test_a_busy_controller_costs_the_share_and_not_the_job(
    make_cluster: Any, desk_at: Any, head: str, gres: str, said: str
) -> None:
    desk = desk_at(make_cluster())
    desk.script("job.sh", "true", head)
    (controller,) = [one.pid for one in desk.cluster.processes() if one.name == "slurmctld"]
    os.kill(controller, signal.SIGSTOP)
    with subprocess.Popen(
        [GPUSBATCH, "--parsable", "-H", "--gpu-mem", "4G", "job.sh"],
        cwd=desk.folder,
        env=desk.environment(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stderr is not None
        lines: List[str] = []
        try:
            # Our words come before sbatch asks the controller, which must be awake again then.
            while "was not decided" not in "".join(lines):
                lines.append(child.stderr.readline())
                assert lines[-1], lines
        finally:
            os.kill(controller, signal.SIGCONT)
        out, err = child.communicate(timeout=120)
    assert child.returncode == 0, (lines, err)
    desk.jobs.append(out.strip())
    assert "no answer from the Slurm controller" in "".join(lines)
    assert said in "".join(lines)
    assert desk.gres(out.strip()) == gres


@pytest.mark.slurm
def test_a_broken_configuration_file_is_named(desk: Any) -> None:
    (desk.folder / ".config").mkdir()
    (desk.folder / ".config" / "gpumem.toml").write_text("[sharing]\nmode = 'sometimes'\n")
    refused(desk.call("job.sh", "--gpu-mem", "4G"), r"gpumem\.toml: sharing\.mode must be one of")
    # A plain job has nothing to do with it.
    done = desk.call("--parsable", "-H", "job.sh")
    assert done.returncode == 0
    desk.jobs.append(done.stdout.strip())


def test_help_tells_our_options_and_points_to_sbatchs(bare_desk: Any) -> None:
    done = bare_desk.call("--help")
    assert done.returncode == 0
    for name in ("--model", "--gpu-mem", "--exclusive-gpu", "#GPUMEM", "sbatch --help"):
        assert name in done.stdout


def test_a_reader_that_leaves_early_is_no_error(bare_desk: Any) -> None:
    from tests.cli.conftest import GPUSBATCH

    done = bare_desk.call("-c", f"'{GPUSBATCH}' --help | true; exit ${{PIPESTATUS[0]}}", command="bash")
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 141)


@pytest.mark.slurm
def test_nothing_heavy_is_imported_on_the_way(desk: Any) -> None:
    """No numpy, torch or rich, nor what else makes Python slow to start."""
    code = (
        "import sys; from slurm_gpumem.cli.gpusbatch import main\n"
        "main(['job.sh', '--model', 'summary.txt', '--batch-size', '8', '--dry-run'])\n"
        "print(*sys.modules)"
    )
    desk.call("job.sh", "--gpu-mem", "4G", "--dry-run")  # the cluster is known from now on
    done = desk.call("-c", code, command=sys.executable)
    command, loaded = done.stdout.splitlines()
    assert command.startswith("sbatch --gres=shard:")
    assert "slurm_gpumem.submission.decide" in loaded.split()
    assert not {"numpy", "torch", "rich", "argparse", "subprocess", "asyncio"} & set(loaded.split())
