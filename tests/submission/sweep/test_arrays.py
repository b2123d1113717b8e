"""Arrays of which nothing is known, on real daemons: one task first, then the others by what it took."""

from __future__ import annotations

import pytest

from tests.recovery.conftest import needs_root
from tests.submission.sweep.conftest import SweepSite

pytestmark = [pytest.mark.slurm, needs_root]
ODD = [
    ["--comment=größer als 5 GiB"],
    ["--comment=" + "x" * 700],
    ["-J", "a;b'c d$(e)=f"],
    ["-p", "gpu,whole"],
    ["--nice=5", "-t", "10"],
]


@pytest.mark.parametrize("program", ["sbatch", "gpusbatch"])
def test_one_task_runs_first_and_the_others_share_by_what_it_took(sweeps: SweepSite, program: str) -> None:
    sweep = sweeps.submit(f"first-{program}", program=program)
    assert "one task runs first" in sweep.said
    sweep.first_alone()
    assert sweep.began() == [0]
    sweep.write("mem")
    sweep.share(6, at_least=8)
    sweep.over()
    assert sorted(sweep.began()) == list(range(8))


def test_the_limit_that_the_user_gave_comes_back(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("limit", array="--array=0-7%3")
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6, at_least=3)
    assert sweep.shown()["ArrayTaskThrottle"] == "3"
    assert len(sweep.running()) == 3
    sweep.over()
    assert sorted(sweep.began()) == list(range(8))


@pytest.mark.parametrize(
    ("options", "cpus", "memory"),
    [
        (["--hold"], "2", "19200M"),
        (["-c3"], "3", "19200M"),
        (["--mem=300"], "2", "300M"),
        (["-n1", "--mem-per-cpu=64"], "1", ""),
    ],
)
def test_cpus_and_memory_of_the_host_that_the_user_named_stay(
    sweeps: SweepSite, options: list[str], cpus: str, memory: str
) -> None:
    sweep = sweeps.submit(f"host{options[0]}", *options, array="--array=0-7%2")
    sweeps.call("scontrol", "release", sweep.job)
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6)
    waiting = sweep.shown()
    assert waiting["NumCPUs"] == cpus
    assert waiting.get("MinMemoryNode", "") == memory
    sweep.over()


@pytest.mark.parametrize(
    "head", ["--gpus=1", "-G a100:1", "--gpus-per-node=1", "--gres=gpu:a100:1", "-n1 --gpus-per-task=1"]
)
def test_every_way_to_ask_for_a_gpu(sweeps: SweepSite, head: str) -> None:
    name = f"head{head.replace(' ', '')}"
    sweep = sweeps.submit(name, head=f"#SBATCH {head}\n#SBATCH --array=2-6:2,11\nsrun -n1 true", array="")
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6, at_least=4)
    sweep.over()
    assert sorted(sweep.began()) == [2, 4, 6, 11]
    assert "srun: error" not in "".join(path.read_text() for path in sweep.folder.glob("out.*"))


def test_an_irregular_list_of_a_thousand_tasks(sweeps: SweepSite) -> None:
    tasks = ",".join(str(task) for task in range(1, 1000) if task % 7 and task % 5)
    sweep = sweeps.submit("irregular", array=f"--array={tasks}%5")
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6, at_least=5)
    assert sweep.shown()["ArrayTaskThrottle"] == "5"


@pytest.mark.parametrize("options", ODD, ids=str)
def test_odd_words_of_a_user(sweeps: SweepSite, options: list[str]) -> None:
    sweep = sweeps.submit(f"odd{ODD.index(options)}", *options, array="--array=0-7%2")
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6)
    sweep.over()


def test_without_room_for_our_record_no_array_is_held_back(sweeps: SweepSite) -> None:
    for comment in ("x" * 730, "x" * 900, "x" * 1000, "two\nlines"):
        sweep = sweeps.submit(f"full{len(comment)}", f"--comment={comment}", "--hold", array="--array=0-7%2")
        assert sweep.shown()["ArrayTaskThrottle"] == "2", comment


def test_who_is_not_meant_starts_as_ever(sweeps: SweepSite) -> None:
    whole = "#SBATCH --gres=gpu:1\n#GPUMEM exclusive-gpu=yes"
    off = sweeps.submit("off", "--hold", array="--array=0-7%2", env={"GPUMEM": "off"})
    alone = sweeps.submit("whole", "--hold", array="--array=0-7%2", head=whole)
    one = sweeps.submit("one", "--hold", array="--array=3")
    assert [sweep.shown()["ArrayTaskThrottle"] for sweep in (off, alone)] == ["2", "2"]
    assert "one task runs first" not in off.said + alone.said + one.said
    variable = sweeps.submit("variable", "--hold", array="", env={"SBATCH_ARRAY_INX": "0-7%2"})
    assert variable.shown()["ArrayTaskThrottle"] == "1"
    assert variable.record(3).hold == 2
