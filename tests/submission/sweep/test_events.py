"""What happens to an array while its tasks wait for the first one, on real daemons: nobody waits forever."""

from __future__ import annotations

from typing import Callable, Dict

import pytest

from tests.recovery.conftest import needs_root
from tests.submission.sweep.conftest import Sweep, SweepSite
from tests.support.waiting import until

pytestmark = [pytest.mark.slurm, needs_root]


def _ends(sweep: Sweep) -> None:
    sweep.write("end.0")


def _fails(sweep: Sweep) -> None:
    sweep.write("code.0", 3)
    sweep.write("end.0")


def _scontrol(*words: str) -> Callable[[Sweep], None]:
    def act(sweep: Sweep) -> None:
        sweep.desk.call(*words, f"{sweep.job}_0")

    return act


FIRST: Dict[str, Callable[[Sweep], None]] = {
    "ended": _ends,
    "failed": _fails,
    "cancelled": _scontrol("scancel"),
    "requeued": _scontrol("scontrol", "requeue"),
    "held": _scontrol("scontrol", "requeuehold"),
}


@pytest.mark.parametrize("event", FIRST)
def test_a_first_task_that_goes_before_it_is_measured_passes_its_place_on(
    sweeps: SweepSite, event: str
) -> None:
    sweep = sweeps.submit(event, array="--array=0-5%3")
    sweep.first_alone()
    FIRST[event](sweep)
    until(lambda: 1 in sweep.began(), but=sweep.how_it_is)
    sweep.write("mem")
    sweep.share(6, at_least=3)
    if event == "held":
        sweeps.call("scontrol", "release", f"{sweep.job}_0")
    sweep.over()
    assert set(sweep.began()) == set(range(6))


def test_a_first_task_that_never_started_is_cancelled(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("never", "--hold", array="--array=0-5%3")
    sweeps.call("scancel", f"{sweep.job}_0")
    sweeps.call("scontrol", "release", sweep.job)
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6, at_least=3)
    sweep.over()
    assert sorted(sweep.began()) == [1, 2, 3, 4, 5]


def test_a_first_task_that_is_suspended_goes_on_where_it_was(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("suspended", array="--array=0-5%3")
    sweep.first_alone()
    sweeps.cluster.run(["scontrol", "suspend", f"{sweep.job}_0"], check=True)
    until(lambda: sweep.states().get(0) == "SUSPENDED", but=sweep.how_it_is)
    sweeps.cluster.run(["scontrol", "resume", f"{sweep.job}_0"], check=True)
    sweep.write("mem")
    sweep.share(6, at_least=3)
    sweep.over()


def test_a_cancelled_array_is_gone(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("gone")
    sweep.first_alone()
    sweeps.call("scancel", sweep.job)
    sweep.write("mem")
    until(lambda: not sweep.states(), but=sweep.how_it_is)
    assert sweep.began() == [0]


@pytest.mark.parametrize("how", ["--dependency=afterok:{0}", "--begin=now+1hour", "--hold"])
def test_an_array_that_may_not_start_yet_starts_with_one_task(sweeps: SweepSite, how: str) -> None:
    before = sweeps.submit("before" + how[:6], array="--array=0-1")
    sweep = sweeps.submit("after" + how[:6], how.format(before.job), array="--array=0-5%3")
    assert not sweep.began()
    before.over()
    if how == "--hold":
        sweeps.call("scontrol", "release", sweep.job)
    elif how.startswith("--begin"):
        sweeps.call("scontrol", "update", f"JobId={sweep.job}", "StartTime=now")
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6, at_least=3)
    sweep.over()


def test_what_grows_late_or_runs_out_of_memory_raises_those_that_wait(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("grows", array="--array=0-7%2")
    sweep.first_alone()
    sweep.write("mem")
    sweep.share(6)
    sweep.write("late", 4000)
    sweep.write("late.0", 4000)
    until(lambda: sweep.gres(7).endswith(":11"), but=sweep.how_it_is)
    sweep.write("oom.2")
    sweep.write("end.0")
    sweep.write("end.1")
    until(lambda: 2 in sweep.began(), but=sweep.how_it_is)
    sweep.write("end.2")
    until(lambda: sweep.gres(7).endswith(":26"), but=sweep.how_it_is)
    assert sweep.record(7).shards == 26
    sweep.write("late", 5000)
    sweep.write("late.3", 5000)
    until(lambda: "keep their shares" in sweeps.log(), but=sweep.how_it_is)
    assert sweep.gres(7).endswith(":26")
    sweep.over()
    assert sorted(set(sweep.began())) == list(range(8))


def test_two_arrays_of_one_script_both_get_what_the_first_task_took(sweeps: SweepSite) -> None:
    one = sweeps.submit("twice", array="--array=0-5%3")
    one.first_alone()
    other = sweeps.submit("twice", array="--array=1,3,5-9:2%4", folder=one.folder)
    until(lambda: len(other.running()) == 1, but=other.how_it_is)
    one.write("mem.0")
    one.share(6, at_least=3)
    other.share(6, at_least=3)
    one.over()
    other.over()
    assert sorted(one.began()) == [0, 1, 1, 2, 3, 3, 4, 5, 5, 7, 9]


def test_who_waited_for_long_enough_starts_on_whole_gpus(sweeps: SweepSite) -> None:
    sweeps.configure(pilot_wait="1s")
    sweeps.kill_samplers()
    sweep = sweeps.submit("waited", array="--array=0-9")
    until(lambda: len(sweep.running()) == 4, but=sweep.how_it_is)
    assert sweep.shown().get("ArrayTaskThrottle", "0") == "0"
    sweep.write("mem.2")
    until(lambda: sweep.gres(9).endswith(":6"), but=sweep.how_it_is)
    sweep.over()
    assert sorted(sweep.began()) == list(range(10))


def test_tasks_that_take_no_gpu_memory_do_not_run_one_by_one(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("nothing", array="--array=0-9")
    sweep.first_alone()
    sweep.write("peak", 0)
    sweep.write("end.0")
    until(lambda: len(sweep.running()) == 4, but=sweep.how_it_is)
    sweep.over()


def test_killed_samplers_and_controllers_lose_nothing(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("killed", array="--array=0-7%3")
    sweep.first_alone()
    assert sweeps.kill_samplers()
    until(lambda: not sweeps.kill_samplers())
    sweeps.saved()
    sweeps.restart_slurmctld(lambda: sweep.write("mem"))
    sweep.write("end.0")  # its epilog, or the next task's prolog, starts another sampler
    sweep.share(6, at_least=3)
    sweep.over()
    assert sorted(set(sweep.began())) == list(range(8))


def test_other_users_jobs_are_not_touched(sweeps: SweepSite) -> None:
    victim = sweeps.submit("victim", array="--array=0-5%2", user="daemon")
    victim.first_alone()
    key = victim.record(0).fingerprint
    before = victim.shown()
    comment = f"--comment=gpumem/1:gpu=a100,shards=0,oom=requeue,fp={key},hold=9,host=cpus+mem"
    thief = sweeps.submit("thief", comment, array="--array=0-5%1", env={"GPUMEM": "off"})
    until(lambda: thief.began(), but=thief.how_it_is)
    thief.write("mem")
    until(lambda: len(thief.running()) > 1, but=thief.how_it_is)  # its own limit is gone
    kept = ("TresPerNode", "Comment", "ArrayTaskThrottle", "NumCPUs")
    assert [victim.shown()[name] for name in kept] == [before[name] for name in kept]
    thief.over()
    victim.write("mem")
    victim.share(6)
    victim.over()


def test_without_a_python_for_its_owner_the_tasks_run_one_after_another(sweeps: SweepSite) -> None:
    sweep = sweeps.submit("closed", array="--array=0-2")
    sweep.first_alone()
    folder = sweeps.site.root / "python" / "packages"
    folder.chmod(0o700)
    try:
        sweep.write("mem")
        until(lambda: "No module named" in sweeps.log(), but=sweep.how_it_is)
        sweep.write("end.0")
        until(lambda: 1 in sweep.began(), but=sweep.how_it_is)
        assert sweep.running() == {1}
    finally:
        folder.chmod(0o755)
    sweep.over()
    assert sweep.began() == [0, 1, 2]
