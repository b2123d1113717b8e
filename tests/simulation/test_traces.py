from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.published_trace import minutes_of
from slurm_gpumem.simulation.trace_file import read_trace, write_trace
from slurm_gpumem.simulation.traces import format_of, load_trace
from tests.simulation.jobs import HEAVY, job


def test_a_trace_that_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    jobs = [
        job(0, 0.0, 12.5, 4096, startup_mib=600, startup_s=30.0, estimates={"text": 5000, "horus": 9000}),
        job(1, 7.0, 100.0, 9000, load=HEAVY, gpus=2, startup_mib=600, startup_s=30.0, user="b", name="n,1",
            partition="p", cores=8, limit=3600.0, priority=3),
    ]  # fmt: skip
    path = tmp_path / "t.csv"
    write_trace(path, jobs, ["a comment"])
    assert read_trace(path) == jobs


def test_json_lines_say_the_same_as_csv(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,work_s,memory_mib,estimate_text\n0,10,2000,2500\n5,20,3000,\n")
    rows = [{"arrival_s": 0, "work_s": 10, "memory_mib": 2000, "estimate_text": 2500},
            {"arrival_s": 5, "work_s": 20, "memory_mib": 3000}]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert load_trace(tmp_path / "t.csv") == load_trace(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no job in it"),
        ("# only a comment\n", "no job in it"),
        ("a,b\n1,2\n", "line 1: the header has no column arrival_s, work_s, memory_mib"),
        ("arrival_s,work_s,memory_mib\n0,1\n", "line 2 has 2 cells, the header 3"),
        ("arrival_s,work_s,memory_mib\n0,x,3\n", "line 2: work_s is 'x', not a number"),
        ("arrival_s,work_s,memory_mib\n0,-4,3\n", "line 2: work_s is '-4'"),
        ("arrival_s,work_s,memory_mib\n0,nan,3\n", "line 2: work_s is 'nan'"),
        ("arrival_s,work_s,memory_mib,gpus\n0,4,3,0\n", "must be more than 0"),
        ("arrival_s,work_s,memory_mib,sm_active\n0,4,3,40\n", "shares from 0 to 1, not percent"),
        ("arrival_s,work_s,memory_mib,colour\n0,4,3,red\n", "unknown column 'colour'"),
        ('{"arrival_s": 0', "line 1 is not JSON"),
        ('{"arrival_s": 0, "work_s": 1, "memory_mib": 1}\n[1]\n', "line 2 is not an object"),
    ],
)
def test_a_wrong_trace_is_refused_with_the_line_and_the_reason(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_trace(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def _repository(tmp_path: Path) -> Path:
    """As the published manager's repository is laid out, with numbers of our own."""
    (tmp_path / "workloads").mkdir()
    (tmp_path / "assets" / "traces").mkdir(parents=True)
    for name, gpus, memory in (("vgg3", 1, 20_000), ("resnet18_cifar100_20e_2", 1, 1900), ("other", 2, 9000)):
        lines = ["#", "env", "python x.py", "x.model", "data", "32", "exclusive", str(gpus), str(memory)]
        (tmp_path / "workloads" / f"{name}.rad").write_text("\n".join([*lines, "21000.5", "9000", "24000"]))
    script = tmp_path / "assets" / "traces" / "replay.sh"
    script.write_text(
        "python src/submit.py --task workloads/vgg3.rad\nsleep 73\n"
        "python src/submit.py --task workloads/resnet18_cifar100_20e_2.rad\nsleep 4.5\n"
        "python src/submit.py --task workloads/other.rad\n"
    )
    return script


def test_the_published_replay_scripts_are_read_where_their_repository_is(tmp_path: Path) -> None:
    script = _repository(tmp_path)
    assert format_of(script) == "replay"
    jobs = load_trace(script)
    assert [one.arrival for one in jobs] == [0.0, 73.0, 77.5]
    assert [one.gpus for one in jobs] == [1, 1, 2]
    assert [one.work for one in jobs] == pytest.approx([42.419 * 60, 20 * 0.22 * 60, 300])
    assert jobs[0].estimates == {"horus": 21000, "faketensor": 9000, "gpumemnet": 24000}
    (tmp_path / "workloads" / "other.rad").unlink()
    with pytest.raises(UsageError, match=r"other\.rad, which is in no folder above it"):
        load_trace(script)


def test_minutes_follow_table_6_2() -> None:
    assert minutes_of("xlnet_base_cased_2") == pytest.approx(8 * 8.949518, abs=0.01)
    assert minutes_of("efficientNet_cifar100_50e_1") == pytest.approx(50 * 0.7666)


def test_philly_is_read_attempt_by_attempt_and_jobs_without_gpus_are_left_out(tmp_path: Path) -> None:
    two = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]
    listed = [
        {"status": "Pass", "vc": "v", "jobid": "a", "user": "u", "submitted_time": "2017-10-09 07:00:10",
         "attempts": [
             {"start_time": "2017-10-09 07:01:00", "end_time": "2017-10-09 07:03:00", "detail": two},
             {"start_time": "2017-10-09 07:05:00", "end_time": "2017-10-09 07:06:00", "detail": two}]},
        {"status": "Killed", "vc": "v", "jobid": "b", "user": "u", "submitted_time": "2017-10-09 07:00:00",
         "attempts": []},
        {"status": "Killed", "vc": "v", "jobid": "c", "user": "w", "submitted_time": "2017-10-09 07:00:00",
         "attempts": [{"start_time": "2017-10-09 07:01:00", "end_time": "2017-10-09 07:02:00",
                       "detail": [{"ip": "m2", "gpus": ["gpu0"]}]}]},
        {"status": "Killed", "jobid": "d", "submitted_time": "None",
         "attempts": [{"start_time": None, "end_time": "None", "detail": []}]},
    ]  # fmt: skip
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(listed))
    jobs = load_trace(path)
    assert [(one.name, one.arrival, one.work, one.gpus) for one in jobs] == [
        ("c", 0.0, 60.0, 1),
        ("a", 10.0, 180.0, 2),
    ]


def test_helios_and_alibaba_are_read_by_their_columns(tmp_path: Path) -> None:
    helios = tmp_path / "cluster_log.csv"
    helios.write_text(
        "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "1,u1,vcA,train,8,64,1,COMPLETED,2020-04-01 00:00:05,2020-04-01 00:00:06,2020-04-01 01:00:06,3600,1\n"
        "2,u2,vcB,cpu,0,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:06,2020-04-01 01:00:06,3600,1\n"
    )
    assert [(one.gpus, one.work, one.partition) for one in load_trace(helios)] == [(8, 3600.0, "vcA")]
    pods = tmp_path / "pods.csv"
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,1000,100,1,500,,LS,Succeeded,100,400,150\np1,1000,100,0,0,,LS,Succeeded,100,400,150\n"
    )
    (pod,) = load_trace(pods)
    assert (pod.gpus, pod.work) == (1, 250.0)
    assert pod.peak_mib <= 8192
    tasks = tmp_path / "pai_task_table.csv"
    tasks.write_text(
        "job1,worker,2.0,Terminated,100.0,400.0,600.0,29.0,200.0,V100\n"
        "job2,worker,1.0,Terminated,110.0,410.0,600.0,29.0,50.0,MISC\n"
        "job3,ps,1.0,Terminated,110.0,410.0,600.0,29.0,,MISC\n"
    )
    assert [(one.name, one.gpus, one.work) for one in load_trace(tasks)] == [
        ("job1", 4, 300.0),
        ("job2", 1, 300.0),
    ]
