"""Plain sbatch, srun and salloc with Slurm's submission filter: they ask for what gpusbatch asks for."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import pytest

from slurm_gpumem.data import HOOKS_CONF
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.remembered import Recipe, write_remembered

pytestmark = pytest.mark.slurm
GPUSBATCH = str(Path(sys.executable).with_name("gpusbatch"))
GPU = "#SBATCH --gres=gpu:1"
MODEL = "#GPUMEM model=summary.txt batch-size=8"
SHOWN = re.compile(r"TresPer.*|MinMemory.*|NumCPUs|CPUs/Task|Features|Partition|(?:Req)?TRES|Requeue|Comment")


@pytest.fixture(scope="module")
def site(make_module_cluster: Any) -> Any:
    return make_module_cluster(cli_filter=True)


def set_mode(site: Any, mode: str) -> None:
    path = site.layout.site_config
    path.write_text(re.sub(r"mode = .*", f'mode = "{mode}"', path.read_text(), count=1))


@pytest.fixture
def known(site: Any, desk_at: Any) -> Iterator[Any]:
    """A desk at a site where jobs share that ran before, with a file of what runs measured."""
    set_mode(site, "known")
    desk = desk_at(site)
    write_remembered(desk.folder / "remembered.json", {})
    yield desk
    set_mode(site, "opt-in")


def submitted(
    desk: Any, program: str, *argv: str, stdin: str = "", answers: bool = True, **env: str
) -> Tuple[Dict[str, str], str]:
    """What Slurm holds of a job, and what its user was told; on a slow machine our command is asked again."""
    env["GPUMEM_REMEMBERED"] = str(desk.folder / "remembered.json")
    options = [] if program == "sh" else ["--parsable", "-H"]
    for _ in range(5):
        done = desk.call(*options, *argv, command=program, env=env, stdin=stdin or None)
        assert done.returncode == 0, done.stderr
        if not answers or "took more than 3 seconds" not in done.stderr:
            break
        desk.jobs.append(done.stdout.strip())
    desk.jobs.append(done.stdout.strip())
    found = {name: value for name, value in desk.shown(desk.jobs[-1]).items() if SHOWN.fullmatch(name)}
    comment = desk.comment(desk.jobs[-1])
    return {**found, **({"Comment": comment} if comment != "(null)" else {})}, done.stderr


def key_of(desk: Any, *argv: str) -> str:
    record = parse_record(submitted(desk, "sbatch", *argv)[0]["Comment"])
    assert record is not None
    return record.fingerprint


HEADS = [
    [GPU], ["#SBATCH --gres=gpu:a100:1"], ["#SBATCH --gpus=1"], ["#SBATCH -G a100:1"], [],
    ["#SBATCH --gpus-per-node=1"], ["#SBATCH -n1 --gpus-per-task=1"], ["#SBATCH --gres=shard:3"],
    [GPU, "#SBATCH --gpu-freq=high"],
    ["#SBATCH --gres=gpu:2"], [GPU, "#SBATCH -n2"], [GPU, "#SBATCH -N2"], [GPU, "#SBATCH --exclusive"],
]  # fmt: skip
ASKING = [MODEL, "#GPUMEM mem=12G", "#GPUMEM mem=3G exclusive-gpu=yes"]
WORDS = [
    ([], {}), (["--comment", "my words"], {}), (["--mem=3G", "-c", "3"], {}), (["--array=0-3%2"], {}),
    (["-p", "whole"], {}), (["--no-requeue", "--open-mode=truncate"], {}), (["-t", "10", "--nice=5"], {}),
    ([], {"SBATCH_GRES": "gpu:a100:1"}), ([], {"GPUMEM_MEM": "7G"}), ([], {"SBATCH_PARTITION": "whole"}),
    ([], {"SBATCH_EXPORT": "ALL,LR=3"}), (["--export=NONE"], {}), (["-D", "/tmp"], {}), (["-N1", "-n4"], {}),
]  # fmt: skip
CASES = [
    *((head, asks, [], {}) for head in HEADS for asks in ASKING[:2]),
    *(([GPU], MODEL, argv, env) for argv, env in WORDS[1:]),
    *(([GPU], "", argv, env) for argv, env in WORDS),
    *((head, ASKING[2], [], {}) for head in ([GPU], ["#SBATCH --gpus-per-node=1"])),
]


def test_forty_submissions_of_every_kind_ask_for_the_same_as_with_gpusbatch(known: Any) -> None:
    assert len(CASES) >= 40
    known.script("job.sh", "python train.py --seed $1 $LR", GPU)
    runs = {Recipe(key_of(known, "job.sh", "2"), "", "", "", ""): {"a100": [9000, 9100]}}
    write_remembered(known.folder / "remembered.json", runs)
    shares = 0
    for head, asks, argv, env in CASES:
        known.script("job.sh", "python train.py --seed $1 $LR", "\n".join([*head, asks]).strip())
        ours, _ = submitted(known, GPUSBATCH, *argv, "job.sh", "2", **env)
        plain, told = submitted(known, "sbatch", *argv, "job.sh", "2", **env)
        assert plain == ours, (head, asks, argv, env, told)
        shares += "shard" in plain.get("TresPerNode", "")
    assert shares >= 35, shares
    for argv in (["--wrap", "python train.py"], ["--wrap", 'echo "it\'s"; true %d\n: $X \\']):
        words = ["--gres=gpu:1", "--comment", 'a "b" %41\\ c', *argv]
        ours, _ = submitted(known, GPUSBATCH, *words, GPUMEM_MEM="5G")
        assert submitted(known, "sbatch", *words, GPUMEM_MEM="5G")[0] == ours
        assert ours["TresPerNode"].endswith("shard:5")


def test_a_script_that_ran_before_shares_and_says_how_not_to(known: Any) -> None:
    known.script("job.sh", "python train.py --lr $1", GPU)
    first, told = submitted(known, "sbatch", "job.sh", "1")
    record = parse_record(first["Comment"])
    assert record is not None
    assert (record.shards, first["TresPerNode"][-5:]) == (0, "gpu:1")
    assert "is measured for the next time" in told
    runs = {Recipe(record.fingerprint, "", "", "", ""): {"a100": [5000, 5000]}}
    write_remembered(known.folder / "remembered.json", runs)
    second, told = submitted(known, "sbatch", "job.sh", "1")
    assert second["TresPerNode"].endswith("shard:6"), told
    assert "GPUMEM=off sbatch" in told
    body = (known.folder / "job.sh").read_text()
    (known.folder / "alone.sh").write_text(body.replace(GPU, f"{GPU}\n#GPUMEM exclusive-gpu=yes"))
    # On older Slurm, which does not keep gpu:1 and shards apart, all of one GPU's shards.
    whole = submitted(known, "sbatch", "alone.sh", "1")[0]["TresPerNode"]
    assert whole.endswith(("gpu:1", "gpu:a100:1", "shard:a100:40")), whole
    other, told = submitted(known, "sbatch", "job.sh", "1", "--batch-size", "64")
    assert other["TresPerNode"].endswith("gpu:1")
    known.script("notebook.sh", "exec jupyter lab --no-browser", GPU)
    session, told = submitted(known, "sbatch", "notebook.sh")
    assert session["TresPerNode"].endswith("gpu:1")
    assert "somebody works in it" in told
    off, told = submitted(known, "sbatch", "job.sh", "1", GPUMEM="off")
    assert (off.get("Comment"), off["TresPerNode"][-5:], told) == (None, "gpu:1", "")


def test_a_script_on_standard_input_is_read_again_where_that_is_possible(known: Any) -> None:
    known.script("job.sh", "python train.py", GPU)
    runs = {Recipe(key_of(known, "job.sh"), "", "", "", ""): {"a100": [5000, 5000]}}
    write_remembered(known.folder / "remembered.json", runs)
    found, told = submitted(known, "sh", "-c", "sbatch --parsable -H < job.sh")
    assert found["TresPerNode"].endswith("shard:6"), told
    found, told = submitted(known, "sh", "-c", "cat job.sh | sbatch --parsable -H")
    assert found["TresPerNode"].endswith("gpu:1")


def test_the_mode_of_the_partition_counts(known: Any, site: Any) -> None:
    known.script("job.sh", "python train.py", GPU)
    runs = {Recipe(key_of(known, "job.sh"), "", "", "", ""): {"a100": [5000, 5000]}}
    write_remembered(known.folder / "remembered.json", runs)
    config = site.layout.site_config
    before = config.read_text()
    try:
        config.write_text(before + '[sharing.partition.whole]\nmode = "opt-in"\n')
        assert submitted(known, "sbatch", "job.sh")[0]["TresPerNode"].endswith("shard:6")
        for partition in ("whole", "gpu,whole"):
            found, told = submitted(known, "sbatch", "-p", partition, "job.sh")
            assert (found["TresPerNode"][-5:], found.get("Comment"), told) == ("gpu:1", None, "")
        config.write_text(before + '[sharing.partition.whole]\nmode = "observe"\n')
        found, _ = submitted(known, "sbatch", "-p", "whole", "job.sh")
        assert found["TresPerNode"].endswith("gpu:1")
        assert "mode=observe" in found["Comment"]
    finally:
        config.write_text(before)


def test_who_is_not_meant_starts_no_process(known: Any, site: Any) -> None:
    calls, noted = known.folder / "calls", site.layout.conf / HOOKS_CONF
    before = noted.read_text()
    known.script("cpu.sh", "true")
    known.script("two.sh", "true", "#SBATCH --gres=gpu:2")
    known.script("shards.sh", "true", "#SBATCH --gres=shard:2")
    known.script("gpu.sh", "true", GPU)
    program = known.folder / "noted.sh"
    program.write_text(f'#!/bin/sh\necho "$4" "$5" >> {calls}\necho done\n')
    program.chmod(0o755)
    try:
        noted.write_text(f"python={program}\n")
        for words in (["cpu.sh"], ["two.sh"], ["shards.sh"], ["--wrap", "true"]):
            submitted(known, "sbatch", *words, GPUMEM_MODEL="", GPUMEM_MEM="", GPUMEM_TRACE="")
        submitted(known, "sbatch", "gpu.sh", GPUMEM="off")
        submitted(known, GPUSBATCH, "gpu.sh")
        submitted(known, GPUSBATCH, "two.sh")
        set_mode(site, "opt-in")
        submitted(known, "sbatch", "gpu.sh")
        job = known.call(
            "--parsable", "-o", "/dev/null", "--gres=gpu:1", "--wrap", "srun true", command="sbatch"
        )
        site.run(["srun", "-n1", "true"], check=True)
        site.run(["salloc", "-n1", "true"], check=True)
        known.jobs.append(job.stdout.strip())
        assert not calls.exists()
        set_mode(site, "known")
        site.run(["srun", "-n1", "--gres=gpu:1", "true"], check=True)
        assert re.fullmatch(r"srun \d+\n", calls.read_text())
    finally:
        noted.write_text(before)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("false", "our command failed"),
        (None, "our command failed"),
        ("echo gres=shard:3", "our command failed"),
        ("exec sleep 60", "took more than 3 seconds"),
        ("sleep 300; echo done", "took more than 3 seconds"),
        ("kill -9 $$", "our command failed"),
        ("head -c 3000000 /dev/zero", "our command failed"),
    ],
)
def test_whatever_our_command_does_the_job_goes_as_it_was_typed(
    known: Any, site: Any, command: Optional[str], said: str
) -> None:
    noted = site.layout.conf / HOOKS_CONF
    before = noted.read_text()
    known.script("gpu.sh", "true", f"{GPU}\n#GPUMEM model=traces/a.txt")
    program = known.folder / "noted.sh"
    program.unlink(missing_ok=True)
    if command is not None:
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)
    try:
        noted.write_text(f"python={program}\n")
        found, told = submitted(known, "sbatch", "gpu.sh", answers=False)
    finally:
        noted.write_text(before)
    assert (found["TresPerNode"][-5:], found.get("Comment")) == ("gpu:1", None)
    assert said in told
    assert told.count("gpumem:") == 1


@pytest.mark.parametrize("mode", [0o646, 0o664])
@pytest.mark.parametrize(
    "line", ["python='{}'", "a=b # python=/nowhere\n  python={} # ours", 'python="{}" b=$a']
)
def test_the_python_is_taken_from_what_only_root_may_write(
    known: Any, site: Any, line: str, mode: int
) -> None:
    noted = site.layout.conf / HOOKS_CONF
    before = noted.read_text()
    known.script("gpu.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    try:
        noted.write_text(line.format(sys.executable) + "\n")
        assert submitted(known, "sbatch", "gpu.sh")[0]["TresPerNode"].endswith("shard:3")
        noted.chmod(mode)
        found, told = submitted(known, "sbatch", "gpu.sh")
        assert found["TresPerNode"].endswith("gpu:1")
        assert f"{noted} is not root's, or others may write it" in told
    finally:
        noted.write_text(before)
        noted.chmod(0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another user's needs root")
def test_another_users_settings_are_not_believed(known: Any, site: Any) -> None:
    noted = site.layout.conf / HOOKS_CONF
    known.script("gpu.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    os.chown(noted, 65534, -1)
    try:
        found, told = submitted(known, "sbatch", "gpu.sh")
    finally:
        os.chown(noted, 0, -1)
    assert found["TresPerNode"].endswith("gpu:1")
    assert "is not root's" in told


@pytest.mark.parametrize("value", ["$PYTHON", "python3", "`which python3`", ""])
def test_a_python_that_is_not_spelt_out_is_not_guessed(known: Any, site: Any, value: str) -> None:
    noted = site.layout.conf / HOOKS_CONF
    before = noted.read_text()
    known.script("gpu.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    try:
        noted.write_text(f"python=/usr/bin/python3\npython={value}\n")
        found, told = submitted(known, "sbatch", "gpu.sh")
    finally:
        noted.write_text(before)
    assert found["TresPerNode"].endswith("gpu:1")
    assert f"python= in {noted} must be the whole path" in told


@pytest.mark.parametrize("text", [None, "this is no Lua", "return {}", "error('x')"])
def test_without_our_part_of_the_filter_jobs_go_as_they_were_typed(
    known: Any, site: Any, text: Optional[str]
) -> None:
    path = site.layout.conf / "gpumem_filter.lua"
    before = path.read_text()
    known.script("gpu.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    try:
        path.unlink() if text is None else path.write_text(text)
        found, told = submitted(known, "sbatch", "gpu.sh")
    finally:
        path.write_text(before)
    assert found["TresPerNode"].endswith("gpu:1")
    assert "gpumem: " in told


def test_what_cannot_be_had_is_said_and_refuses_no_job(known: Any) -> None:
    for asks, said in {
        "model=nowhere.txt": "nowhere.txt",
        "mem=100G": "does not fit",
        "mem=lots": "lots",
        "model=summary.txt batch-size=many": "batch-size",
    }.items():
        known.script("job.sh", "true", f"{GPU}\n#GPUMEM {asks}")
        found, told = submitted(known, "sbatch", "job.sh")
        assert found["TresPerNode"].endswith("gpu:1")
        assert said in told
        assert "goes to Slurm as it is" in told
        assert "Nothing was submitted" not in told
    known.script("job.sh", "true", f"{GPU}\n#SBATCH --cpus-per-gpu=2\n#GPUMEM mem=3G")
    found, told = submitted(known, "sbatch", "job.sh")
    assert found["TresPerNode"].endswith("gpu:1")
    assert "with --cpus-per-task it would share one" in told


def test_a_component_of_a_heterogeneous_job_stays_as_it_is(known: Any) -> None:
    known.script("job.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    done = known.call("--parsable", "-H", "-n1", ":", "-n1", "--gres=gpu:1", "job.sh", command="sbatch")
    assert done.returncode == 0, done.stderr
    known.jobs.append(done.stdout.strip())
    shown = known.cluster.run(["scontrol", "show", "job", known.jobs[-1]], check=True).stdout
    assert "shard" not in shown
    assert done.stderr.count("heterogeneous") == 1
    # gpusbatch has said so already: the filter of the sbatch that it calls does not say it again.
    again = known.call("--parsable", "-H", "-n1", ":", "-n1", "--gres=gpu:1", "job.sh")
    known.jobs.append(again.stdout.strip())
    assert again.stderr.count("heterogeneous") == 1, again.stderr


def test_a_named_pipe_as_the_script_does_not_hang_the_filter(known: Any) -> None:
    pipe = known.folder / "pipe.sh"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(f"#!/bin/sh\n{GPU}\ntrue\n"))
    writer.start()
    found, _ = submitted(known, "sbatch", str(pipe))
    writer.join()
    assert found["TresPerNode"].endswith("gpu:1")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
@pytest.mark.parametrize("program", ["sbatch", GPUSBATCH])
def test_closed_streams_change_nothing(known: Any, closed: str, program: str) -> None:
    known.script("job.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    found, told = submitted(known, "sh", "-c", f"{program} --parsable -H job.sh {closed}")
    assert found["TresPerNode"].endswith("shard:3"), told
    assert told.count("gpumem:") == ("2>" not in closed)


def test_a_step_of_a_job_that_runs_gets_what_its_job_has(known: Any) -> None:
    done = known.call(
        "--parsable",
        "-o",
        "/dev/null",
        "--gres=gpu:1",
        "--wrap",
        "sleep 60",
        command="sbatch",
        env={"GPUMEM": "off"},
    )
    known.jobs.append(done.stdout.strip())
    wait_for_job(known.cluster, known.jobs[-1], ["RUNNING"])
    words = [f"--jobid={known.jobs[-1]}", "--overlap", "true"]
    for more in ([], ["--gres=gpu:1"]):
        step = known.call(*more, *words, command="srun", env={"GPUMEM_MEM": "3G"} if not more else {})
        assert (step.returncode, step.stderr) == (0, "")


@pytest.mark.parametrize("program", ["srun", "salloc"])
def test_components_of_srun_and_salloc_stay_as_they_are(known: Any, program: str) -> None:
    show = ["sh", "-c", "scontrol show job $SLURM_JOB_ID"] if program == "salloc" else ["true"]
    words = ["-n1", "--gres=gpu:1", *([] if program == "salloc" else ["true"]), ":", "-n1", *show]
    done = known.call(*words, command=program, env={"GPUMEM_MEM": "3G"})
    assert done.returncode == 0, done.stderr
    assert "shard" not in done.stdout
    assert "asking for" not in done.stderr


def test_a_slip_in_a_line_or_a_wrong_file_is_told_where_nothing_else_is(known: Any, site: Any) -> None:
    set_mode(site, "opt-in")
    known.script("job.sh", "true", f"{GPU}\n#GPUMEM memory=12G")
    found, told = submitted(known, "sbatch", "job.sh")
    assert (found["TresPerNode"][-5:], "did you mean 'mem'" in told) == ("gpu:1", True)
    set_mode(site, "known")
    known.script("job.sh", "true", GPU)
    (known.folder / ".config").mkdir()
    (known.folder / ".config/gpumem.toml").write_text("[sharing")
    found, told = submitted(known, "sbatch", "job.sh")
    assert (found["TresPerNode"][-5:], "gpumem.toml" in told) == ("gpu:1", True)


def test_a_configuration_that_is_a_named_pipe_does_not_hang_the_filter(known: Any) -> None:
    known.script("job.sh", "true", GPU)
    pipe = known.folder / "pipe.toml"
    os.mkfifo(pipe)
    found, _ = submitted(known, "sbatch", "job.sh", GPUMEM_SITE_CONFIG=str(pipe))
    assert "shard" not in found.get("TresPerNode", "")


def test_more_arguments_than_slurm_can_write_down_in_time_are_not_handed_over(known: Any) -> None:
    known.script("job.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    for number, said in ((3999, "asking for"), (4000, "too long")):
        found, told = submitted(known, "sbatch", "job.sh", *map(str, range(number)))
        assert said in told
        assert found["TresPerNode"].endswith("shard:3") == (said == "asking for")


def test_a_terminal_that_stops_what_writes_from_behind_is_no_obstacle(known: Any) -> None:
    known.script("job.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    command = ["sh", "-c", "stty tostop; sbatch -H --parsable job.sh"]
    done = known.call("-c", f"import pty; pty.spawn({command!r})", command=sys.executable)
    known.jobs.append(done.stdout.split()[-1])
    assert "asking for" in done.stdout
    assert known.shown(known.jobs[-1])["TresPerNode"].endswith("shard:3")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root submits for others")
def test_root_opens_no_files_of_those_for_whom_it_submits(known: Any) -> None:
    known.script("job.sh", "true", f"{GPU}\n#GPUMEM mem=3G")
    found, told = submitted(known, "sbatch", "--uid=daemon", "job.sh")
    assert (found["TresPerNode"][-5:], told) == ("gpu:1", "")
    assert submitted(known, "sbatch", "job.sh")[0]["TresPerNode"].endswith("shard:3")


@pytest.mark.parametrize("words", [(), ("sbatch", "x"), ("sbatch", "1", "2")])
def test_who_types_the_filters_command_is_told_what_to_type_instead(
    known: Any, words: Tuple[str, ...]
) -> None:
    done = known.call("cli-filter", *words, command=GPUSBATCH.replace("gpusbatch", "gpumem"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "type sbatch" in done.stderr
