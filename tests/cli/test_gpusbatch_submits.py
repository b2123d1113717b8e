"""gpusbatch on real daemons: what reaches Slurm, and that everything else stays sbatch's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.formats.comment import CommentRecord, parse_record
from slurm_gpumem.units import ceil_div
from tests.cli.conftest import GPUSBATCH

pytestmark = pytest.mark.slurm

MODEL = ("--model", "summary.txt", "--estimator", "horus")


def expected(desk: Any, batch: int) -> Any:
    return estimate(desk.folder / "summary.txt", batch_size=batch, gpu="a100-40gb", estimator="horus")


def test_a_job_asks_for_its_estimate_and_runs_on_part_of_a_gpu(desk: Any) -> None:
    desk.script("job.sh", 'echo "$CUDA_VISIBLE_DEVICES $SLURM_SHARDS_ON_NODE $1 $2" > seen', "#SBATCH -o out")
    job = desk.submit("job.sh", *MODEL, "--batch-size", "128", "--", "first", "two words")
    fields = wait_for_job(desk.cluster, job)
    assert fields["JobState"] == "COMPLETED"
    guess = expected(desk, 128)
    shards = ceil_div(guess.request_mib, 1024)
    assert desk.gres(job) == f"shard:{shards}"
    assert re.fullmatch(rf"[0-3] {shards} first two words\n", (desk.folder / "seen").read_text())


def test_a_summary_from_standard_input_asks_for_the_same(desk: Any) -> None:
    summary = (desk.folder / "summary.txt").read_text()
    options = ("-H", "job.sh", "--estimator", "horus", "--batch-size", "128")
    named, piped = (
        desk.submit(*options, "--model", "summary.txt"),
        desk.submit(*options, "--model", "-", stdin=summary),
    )
    assert desk.gres(piped) == desk.gres(named)
    both = desk.call("--model", "-", "--batch-size", "8", stdin="#!/bin/bash\ntrue\n")
    assert both.returncode == 2
    assert "cannot both come from standard input" in both.stderr


def test_code_that_cannot_be_traced_from_here_says_how_else(desk: Any) -> None:
    (desk.folder / "train.py").write_text("def build_model():\n    raise RuntimeError('never called')\n")
    done = desk.call("job.sh", "--model", "train.py:build_model", "--batch-size", "8")
    assert done.returncode == 2
    assert "no such file" not in done.stderr
    assert "gpumem summarize train.py:build_model ... -o summary.json" in done.stderr
    assert desk.cluster.run(["squeue", "-h", "-n", "job.sh", "-t", "PD,R"], check=True).stdout == ""


def test_what_the_user_asked_of_cpus_and_memory_stays(desk: Any) -> None:
    job = desk.submit("-H", "-c", "3", "--mem=5G", "--open-mode=truncate", "job.sh", "--gpu-mem", "10G")
    fields = desk.shown(job)
    assert (fields["CPUs/Task"], fields["MinMemoryNode"]) == ("3", "5G")


def test_the_record_is_behind_the_users_comment(desk: Any) -> None:
    job = desk.submit(
        "-H", "--comment", "mine, 'own'", "job.sh", *MODEL, "--batch-size", "64", "--on-oom", "fail"
    )
    guess = expected(desk, 64)
    assert guess.utilization is None, "its class is somebody's own: the text does not show its activity"
    comment = desk.comment(job)
    assert comment.startswith("mine, 'own' gpumem/1:")
    record = parse_record(comment)
    assert record is not None
    assert (record.model, record.optimizer, record.precision) == ("summary", "adam", "fp32")
    assert sum(record.part_sizes.values()) == guess.peak_mib
    assert len(record.fingerprint) == 16
    assert record._replace(model="", optimizer="", precision="", parts="", fingerprint="") == CommentRecord(
        estimate_mib=guess.peak_mib,
        request_mib=guess.request_mib,
        estimator="horus",
        gpu="a100",
        batch=64,
        shards=ceil_div(guess.request_mib, 1024),
        on_oom="fail",
    )


def test_a_comment_of_the_script_is_kept_too_and_no_requeue_is_no_consent(desk: Any) -> None:
    desk.script("job.sh", "true", "#SBATCH --comment='from the script' --no-requeue\n#GPUMEM mem=4G")
    comment = desk.comment(desk.submit("-H", "job.sh"))
    assert comment.startswith("from the script gpumem/1:")
    record = parse_record(comment)
    assert record is not None
    assert record._replace(fingerprint="") == CommentRecord(
        request_mib=4096, estimator="mem", shards=4, on_oom="fail"
    )


def test_a_comment_that_leaves_no_room_goes_alone_and_is_told(desk: Any) -> None:
    long = "x" * 1000
    done = desk.call("--parsable", "-H", "--comment", long, "job.sh", "--gpu-mem", "4G")
    desk.jobs.append(done.stdout.strip())
    assert "the comment is too long for our record" in done.stderr
    assert desk.comment(done.stdout.strip()) == long


def test_stdout_is_sbatchs_and_the_human_line_is_on_stderr(desk: Any) -> None:
    done = desk.call("-H", "job.sh", *MODEL, "--batch-size", "128")
    job = re.fullmatch(r"Submitted batch job ([0-9]+)\n", done.stdout)
    assert job, done.stdout
    desk.jobs.append(job[1])
    guess = expected(desk, 128)
    shards = ceil_div(guess.request_mib, 1024)
    assert done.stderr == (
        f"gpumem: summary.txt, batch 128, Adam, fp32 → peak {guess.peak_mib / 1024:.1f} GiB, "
        f"asking for {shards} GiB ({shards} of 40 shards on an a100)\n"
    )


def test_the_batch_size_of_the_scripts_command_counts_for_every_text_and_is_said(desk: Any) -> None:
    fixed = (desk.folder / "summary.txt").read_text().replace("[-1,", "[2,")
    (desk.folder / "two.txt").write_text(fixed)
    desk.script("job.sh", "python train.py --batch-size 160")
    for model in ("summary.txt", "two.txt"):
        said = desk.call("--dry-run", "job.sh", "--model", model).stderr
        assert f"gpumem: {model}, batch 160 (job.sh, line 3), Adam, fp32 → peak" in said
        assert "make them agree" not in said
    stated = desk.call("--dry-run", "job.sh", "--model", "two.txt", "--batch-size", "8").stderr
    assert "batch 8, Adam" in stated
    assert "but the estimate is for a batch of 8: make them agree" in stated
    desk.script("job.sh", "python train.py")
    (desk.folder / "one.txt").write_text(fixed.replace("[2,", "[1,"))
    told = "the estimate is for a batch of 1, as the summary was made"
    assert told in desk.call("--dry-run", "job.sh", "--model", "one.txt").stderr
    assert told not in desk.call("--dry-run", "job.sh", "--model", "one.txt", "--batch-size", "1").stderr


def test_quiet_silences_us_and_not_the_jobs_number(desk: Any) -> None:
    done = desk.call("-Q", "-H", "job.sh", "--gpu-mem", "4G")
    desk.jobs.append(done.stdout.split()[-1])
    assert (re.sub("[0-9]+", "N", done.stdout), done.stderr) == ("Submitted batch job N\n", "")


def test_parsable_output_and_the_exit_code_are_exactly_sbatchs(desk: Any) -> None:
    job = desk.submit("-H", "job.sh", "--gpu-mem", "4G")
    assert int(job) > 0
    refused = desk.call("--parsable", "--time=nonsense", "job.sh", "--gpu-mem", "4G")
    plain = desk.call("--parsable", "--time=nonsense", "job.sh", command="sbatch")
    assert (refused.returncode, refused.stdout) == (plain.returncode, plain.stdout)
    assert plain.stderr.strip() in refused.stderr


def test_waiting_hands_on_the_jobs_own_exit_code(desk: Any) -> None:
    desk.script("job.sh", "exit 7", "#SBATCH --gpus=1 -o /dev/null")
    assert desk.call("--wait", "job.sh", "--gpu-mem", "4G").returncode == 7


def test_without_a_model_it_is_sbatch_with_the_same_words(desk: Any) -> None:
    desk.script("job.sh", 'printf "%s|" "$@" > seen', "#SBATCH -o /dev/null")
    done = desk.call("--parsable", "--mem", "100", "job.sh", "-n", "5", "--model-like", "--", "-t")
    assert done.stderr == ""
    wait_for_job(desk.cluster, done.stdout.strip())
    assert (desk.folder / "seen").read_text() == "-n|5|--model-like|--|-t|"
    fields = desk.shown(done.stdout.strip())
    assert "TresPerNode" not in fields
    assert "Comment" not in fields


def test_values_that_look_like_our_options_are_values(desk: Any) -> None:
    job = desk.submit("-H", "-J", "--model", "--comment", "--gpu-mem", "job.sh")
    assert desk.shown(job)["JobName"] == "--model"
    assert desk.comment(job) == "--gpu-mem"
    assert desk.gres(job) == ""


@pytest.mark.parametrize(
    "line",
    [
        "--gres=gpu:a100:1",
        "--gpus=1",
        "-G 1",
        "--gpus-per-node=1",
        "--gpus-per-task=1 --ntasks=1",
        "--gpus=1 --cpus-per-gpu=4 --mem-per-gpu=4G",
    ],
)
def test_a_gpu_in_the_script_becomes_shards_and_its_steps_run(desk: Any, line: str) -> None:
    desk.script("my job.sh", "srun true && echo done > seen", f"#SBATCH {line} -o out")
    job = desk.submit("my job.sh", "--gpu-mem", "10G")
    fields = wait_for_job(desk.cluster, job)
    assert (fields["JobState"], fields["JobName"]) == ("COMPLETED", "my job.sh"), (
        desk.folder / "out"
    ).read_text()
    assert desk.gres(job) in ("shard:10", "shard:a100:10")
    assert "gpu" not in fields.get("TresPerJob", "") + fields.get("TresPerTask", "")
    assert (desk.folder / "seen").read_text() == "done\n"
    if "cpus-per-gpu" in line:
        assert (fields["CPUs/Task"], fields["MinMemoryNode"]) == ("4", "4G")
    assert not list(desk.folder.glob("gpumem-*"))


def test_a_script_that_counts_gpus_by_a_variable_of_whole_ones_is_warned(desk: Any) -> None:
    desk.script(
        "job.sh", "torchrun --nproc_per_node=${SLURM_GPUS_PER_NODE} t.py", "#SBATCH --gpus-per-node=1"
    )
    done = desk.call("--dry-run", "job.sh", "--gpu-mem", "4G")
    assert "job.sh reads $SLURM_GPUS_PER_NODE, which a shared job does not have" in done.stderr
    desk.script("job.sh", "echo $SLURM_GPUS_ON_NODE")
    assert "reads" not in desk.call("--dry-run", "job.sh", "--gpu-mem", "4G").stderr


def test_a_gpu_in_the_environment_becomes_shards(desk: Any) -> None:
    job = desk.submit(
        "-H", "job.sh", "--gpu-mem", "10G", env={"SBATCH_GPUS": "1", "SBATCH_CPUS_PER_GPU": "2"}
    )
    assert desk.gres(job) == "shard:10"
    assert desk.shown(job)["CPUs/Task"] == "2"


def test_exclusive_gpu_leaves_room_for_nobody(desk: Any) -> None:
    job = desk.submit("-H", "job.sh", *MODEL, "--batch-size", "8", "--exclusive-gpu")
    version = desk.cluster.run(["sinfo", "--version"]).stdout.split()[1].split(".")
    # Before 23.02.6 a gpu:1 job and shard jobs may be put on one GPU.
    old = tuple(map(int, version)) < (23, 2, 6)
    assert desk.gres(job) == ("shard:a100:40" if old else "gpu:1")


def test_more_than_a_gpu_has_is_refused_with_what_would_fit(desk: Any) -> None:
    before = desk.cluster.run(["squeue", "-h", "-u", "root", "-o", "%i"]).stdout
    done = desk.call("job.sh", *MODEL, "--batch-size", "4096")
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert re.fullmatch(
        r"gpumem: peak [0-9.]+ GiB does not fit the largest GPU of partition gpu \(a100, 40 GiB\)\.", lines[0]
    )
    batch = re.match(r" {8}Batch ([0-9]+) would fit\.", lines[1])
    assert batch
    assert lines[-1] == "        Nothing was submitted. Use --exclusive-gpu to try anyway."
    assert desk.cluster.run(["squeue", "-h", "-u", "root", "-o", "%i"]).stdout == before
    assert desk.call("--dry-run", "job.sh", *MODEL, "--batch-size", batch[1]).returncode == 0


def test_every_task_of_an_array_gets_its_part(desk: Any) -> None:
    desk.script(
        "job.sh", 'echo "$SLURM_SHARDS_ON_NODE" > "seen.$SLURM_ARRAY_TASK_ID"', "#SBATCH -o /dev/null"
    )
    job = desk.submit("--array=1-3", "job.sh", "--gpu-mem", "3G")
    for task in (1, 2, 3):
        assert wait_for_job(desk.cluster, f"{job}_{task}")["JobState"] == "COMPLETED"
        assert (desk.folder / f"seen.{task}").read_text() == "3\n"


def test_a_dry_run_prints_the_command_and_submits_nothing(desk: Any) -> None:
    before = desk.cluster.run(["squeue", "-h", "-o", "%i"]).stdout
    done = desk.call("--dry-run", "-J", "a b", "job.sh", "--gpu-mem", "10G", "--", "$(x)")
    assert re.fullmatch(
        r"sbatch -J 'a b' --gres=shard:10 --cpus-per-task=4 --mem=32000M --open-mode=append "
        r"--comment=gpumem/1:req=10240,by=mem,shards=10,oom=requeue,fp=s[0-9a-f]{15} job.sh '\$\(x\)'\n",
        done.stdout,
    )
    assert desk.cluster.run(["squeue", "-h", "-o", "%i"]).stdout == before


def test_json_tells_the_job_and_all_that_led_to_it(desk: Any) -> None:
    done = desk.call("--json", "-H", "job.sh", *MODEL, "--batch-size", "32")
    answer = json.loads(done.stdout)
    desk.jobs.append(str(answer["job_id"]))
    guess = expected(desk, 32)
    assert answer["schema"] == "gpumem-submit/1"
    assert (answer["peak_mib"], answer["request_mib"]) == (guess.peak_mib, guess.request_mib)
    assert sum(answer["parts"].values()) == answer["peak_mib"]
    assert desk.gres(str(answer["job_id"])) == answer["gres"] == f"shard:{answer['shards']}"
    assert json.loads(desk.call("--json", "--dry-run", "job.sh", "--gpu-mem", "4G").stdout)["shards"] == 4


def test_explain_shows_the_parts_on_stderr(desk: Any) -> None:
    done = desk.call("--explain", "--dry-run", "job.sh", *MODEL, "--batch-size", "128")
    assert re.search(r"activations +[0-9,]+ MiB  █", done.stderr)
    assert done.stdout.startswith("sbatch ")
    ascii_only = desk.call(
        "--explain", "--dry-run", "job.sh", *MODEL, "--batch-size", "128", env={"PYTHONIOENCODING": "ascii"}
    )
    assert ascii_only.stderr.isascii()
    assert "activations" in ascii_only.stderr


def test_a_script_on_standard_input_is_read_once_and_submitted(desk: Any) -> None:
    text = "#!/bin/bash\n#GPUMEM mem=5G\n#SBATCH --gpus=1 -o out\necho from stdin > seen\n"
    job = desk.submit(stdin=text)
    assert desk.gres(job) == "shard:5"
    assert wait_for_job(desk.cluster, job)["JobState"] == "COMPLETED"
    assert (desk.folder / "seen").read_text() == "from stdin\n"
    plain = desk.submit("-H", stdin="#!/bin/bash\ntrue\n")
    assert desk.gres(plain) == ""


def test_a_script_from_a_pipe_is_read_once_too(desk: Any) -> None:
    command = "gpusbatch --parsable -H <(printf '#!/bin/sh\\ntrue\\n') --gpu-mem 4G"
    import sys
    from pathlib import Path

    done = desk.call(
        "-c", command.replace("gpusbatch", str(Path(sys.executable).with_name("gpusbatch"))), command="bash"
    )
    assert done.returncode == 0, done.stderr
    desk.jobs.append(done.stdout.strip())
    assert desk.gres(done.stdout.strip()) == "shard:4"


def test_a_wrapped_command_can_share(desk: Any) -> None:
    job = desk.submit("-H", "--wrap", "echo --model", "--gpu-mem", "4G")
    assert desk.gres(job) == "shard:4"


def test_a_heterogeneous_script_goes_to_sbatch_word_for_word(desk: Any) -> None:
    desk.script(
        "het.sh", "true", "#GPUMEM mem=4G\n#SBATCH -n1 --mem=100\n#SBATCH hetjob\n#SBATCH -n1 --mem=100"
    )
    done = desk.call("--dry-run", "-H", "het.sh", "an argument")
    assert (done.returncode, done.stdout) == (0, "sbatch -H het.sh 'an argument'\n")
    job = desk.submit("-H", "het.sh")
    assert "HetJobOffset" in desk.shown(job)


HOSTILE = [
    "two words", "it's", 'say "hi"', "$(touch pwned)", "`touch pwned`", "a;touch pwned", "new\nline",
    "-dash",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_comments_arrive_byte_for_byte(desk: Any, name: str) -> None:
    desk.script(name, "true", "#SBATCH --gpus=1")
    job = desk.submit("-H", "--comment", name, "--gpu-mem", "4G", "--", name, name)
    comment = desk.comment(job)
    assert comment.startswith(f"{name} gpumem/1:req=4096,by=mem,")
    record = parse_record(comment)
    assert record is not None
    assert (record.shards, record.on_oom, record.fingerprint[:1]) == (4, "requeue", "s")
    shown = desk.cluster.run(["squeue", "-h", "-j", job, "-o", "%j"], check=True).stdout[:-1]
    assert shown == name
    assert not (desk.folder / "pwned").exists()


def test_control_characters_do_not_reach_the_terminal(desk: Any) -> None:
    (desk.folder / "evil\x1b[31m.txt").write_text((desk.folder / "summary.txt").read_text())
    done = desk.call("--dry-run", "job.sh", "--model", "evil\x1b[31m.txt", "--batch-size", "8")
    assert done.returncode == 0
    assert "\x1b" not in done.stderr
    missing = desk.call("--dry-run", "job.sh", "--model", "none\x1b[31m.txt", "--batch-size", "8")
    assert missing.returncode == 2
    assert "\x1b" not in missing.stderr


def test_the_estimate_follows_the_gpu_the_user_names(desk: Any) -> None:
    done = desk.call("--dry-run", "--json", "job.sh", *MODEL, "--batch-size", "8", "--gpu", "a100")
    assert json.loads(done.stdout)["gres"].startswith("shard:a100:")
    other = desk.call("--dry-run", "--json", "job.sh", *MODEL, "--batch-size", "8", "--gpu", "v100")
    assert "partition gpu has no v100: the estimate is for its a100" in other.stderr
    assert (json.loads(other.stdout)["gpu"], json.loads(done.stdout)["gpu"]) == ("a100", "a100")


def test_a_report_on_a_pending_job_says_that_it_has_not_started(desk: Any) -> None:
    job = desk.submit("-H", "--gpu-mem", "4G", "job.sh")
    (desk.folder / "spool").mkdir()
    site = desk.folder / "site.toml"
    site.write_text(f'[node]\nspool = "{desk.folder}/spool"\n[devcluster]\nindex = "{desk.folder}/index"\n')
    env = {"GPUMEM_SITE_CONFIG": str(site), "GPUMEM_INDEX": str(desk.folder / "index")}
    done = desk.call(
        "report", "-j", f"{job},99999", command=str(Path(GPUSBATCH).with_name("gpumem")), env=env
    )
    assert done.returncode == 1
    assert f"job {job} has not started yet (JobHeldUser)" in done.stderr
    assert "no record of job 99999; was it submitted with gpusbatch?" in done.stderr
