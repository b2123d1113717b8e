"""decide() and submit() from Python, on real daemons: what gpusbatch would do, as values."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from slurm_gpumem import decide, estimate, submit
from slurm_gpumem.api import JobOptions
from slurm_gpumem.config.schema import JOB_KEYS
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.demo import show_job, wait_for_job
from slurm_gpumem.errors import DoesNotFitError, GpumemError, SlurmError, UnknownNameError, UsageError
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.slurm.submit.sbatch import SbatchRefusedError
from slurm_gpumem.submission.submission import NOTHING_ASKED
from slurm_gpumem.units import ceil_div
from tests.estimators.explain.small_trace import small_summary

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
RESNET = EXAMPLES / "resnet50.txt"


class Job:
    """A folder with a script, at a cluster; jobs that are submitted are cancelled in the end."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ids: List[str] = []

    def submit(self, *args: Any, **about: Any) -> Any:
        done = submit(*args, **about)
        self.ids.append(str(done.job_id))
        return done

    def gres(self, job_id: int) -> str:
        """The job's GPU request, "shard:13" whatever Slurm's version puts before it."""
        text = show_job(self.cluster, str(job_id)).get("TresPerNode", "")
        return text.replace("gres/", "").replace("gres:", "")


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    for name in [name for name in os.environ if name.startswith(("SBATCH_", "SLURM_", "GPUMEM_"))]:
        monkeypatch.delenv(name)
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    for name, value in {**cluster.env, **own}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text('#!/bin/bash\n#SBATCH -o /dev/null\necho "$1" > seen\n')
    job = Job(cluster)
    yield job
    if job.ids:
        cluster.run(["scancel", *job.ids])


@pytest.mark.slurm
def test_a_decision_follows_the_variables_that_the_script_exports(site: Job) -> None:
    head = "#!/bin/bash\n#SBATCH -o /dev/null\n"
    model = EXAMPLES / "gpt2.txt"
    plain = decide(f"{head}python train.py\n", model=model, batch_size=8).estimate
    conf = "garbage_collection_threshold:0.8"
    lines = f"export CUBLAS_WORKSPACE_CONFIG=:16:8\nPYTORCH_CUDA_ALLOC_CONF={conf} python train.py\n"
    decision = decide(head + lines, model=model, batch_size=8)
    assert plain is not None
    assert decision.estimate is not None
    assert decision.estimate.job.cublas_workspace == ":16:8"
    assert decision.estimate.parts["workspace"] < plain.parts["workspace"]
    assert any(f"{conf} is not simulated" in line for line in decision.warnings)


@pytest.mark.slurm
def test_a_decision_is_the_estimate_the_request_and_the_command(site: Job) -> None:
    job = {"model": RESNET, "batch_size": 128, "precision": "amp-bf16"}
    decision = decide("job.sh", **job, sbatch={"time": "0:10:00", "hold": True})
    guess = estimate(RESNET, batch_size=128, precision="amp-bf16", gpu="a100-40gb")
    memory, shards = ceil_div(guess.request_mib, 1024), 37  # by its activity
    assert (decision.peak_mib, decision.request_mib) == (guess.peak_mib, guess.request_mib)
    assert (decision.gres, decision.shards, decision.shards_per_gpu) == (f"shard:{shards}", shards, 40)
    assert decision.reason == f"{shards} of 40 shards on an a100"
    assert (decision.shards_by_memory, decision.shards_by_activity) == (memory, shards)
    assert not decision.whole_gpu
    assert decision.estimate is not None
    assert decision.estimate.parts == guess.parts
    assert decision.argv[:4] == ("sbatch", "--time=0:10:00", "--hold", f"--gres=shard:{shards}")
    assert decision.argv[-1] == "job.sh"
    assert set(decision.options) == {"gres", "cpus-per-task", "mem", "open-mode", "comment"}
    assert all(f"--{name}={value}" in decision.argv for name, value in decision.options.items())
    assert decision.script is None
    with pytest.raises(FrozenInstanceError):
        decision.shards = 1  # type: ignore[misc]


@pytest.mark.slurm
def test_python_decides_what_gpusbatch_decides(site: Job) -> None:
    gpusbatch = str(Path(sys.executable).with_name("gpusbatch"))
    words = ["--dry-run", "--json", "-c", "2", "job.sh", "--model", str(RESNET), "--batch-size", "100"]
    more = ["--optimizer", "sgd", "--precision", "amp-bf16", "--max-slowdown", "1.3", "--checkpointing"]
    done = subprocess.run([gpusbatch, *words, *more], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    decision = decide(
        "job.sh",
        sbatch={"c": 2},
        model=RESNET,
        batch_size=100,
        optimizer="sgd",
        precision="amp-bf16",
        max_slowdown=1.3,
        checkpointing=True,
    )
    for name in ("peak_mib", "request_mib", "gres", "shards", "shards_by_activity", "max_slowdown", "reason"):
        assert printed[name] == getattr(decision, name), name
    assert " ".join(decision.argv) == " ".join(printed["command"]).replace("-c 2", "--cpus-per-task=2")


@pytest.mark.slurm
def test_a_submitted_job_runs_on_its_share_with_its_arguments(site: Job, tmp_path: Path) -> None:
    done = site.submit(tmp_path / "job.sh", args=["two words"], mem="10G")
    assert wait_for_job(site.cluster, str(done.job_id))["JobState"] == "COMPLETED"
    assert site.gres(done.job_id) == done.decision.gres == "shard:10"
    assert (tmp_path / "seen").read_text() == "two words\n"
    assert (done.cluster, done.messages, done.exit_code) == (None, (), 0)


@pytest.mark.slurm
def test_a_script_may_be_given_as_text(site: Job, tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH -o /dev/null --gpus=1\n#GPUMEM mem=5G\necho text > seen\n"
    decision = decide(text)
    assert decision.gres == "shard:5"
    assert decision.script is not None
    assert "--gpus" not in decision.script
    assert "echo text > seen" in decision.script
    done = site.submit(text)
    assert wait_for_job(site.cluster, str(done.job_id))["JobState"] == "COMPLETED"
    assert (tmp_path / "seen").read_text() == "text\n"


@pytest.mark.slurm
def test_a_file_with_gpu_options_is_submitted_as_a_copy_without_them(site: Job, tmp_path: Path) -> None:
    (tmp_path / "gpu.sh").write_text("#!/bin/bash\n#SBATCH --gpus=1 -o /dev/null\ntrue\n")
    done = site.submit("gpu.sh", mem="4096M", sbatch={"hold": True})
    assert site.gres(done.job_id) == "shard:4"
    assert "--gpus" not in (done.decision.script or "")
    assert done.decision.notes == ("the GPU options of gpu.sh are taken out of the copy that is submitted",)
    assert "--gpus=1" in (tmp_path / "gpu.sh").read_text()


@pytest.mark.slurm
def test_a_wrapped_command_needs_no_script(site: Job) -> None:
    done = site.submit(sbatch={"wrap": "true", "output": "/dev/null", "hold": True}, mem="3G")
    assert site.gres(done.job_id) == "shard:3"
    with pytest.raises(UsageError, match="nothing to submit"):
        submit(mem="3G")


@pytest.mark.slurm
def test_an_executor_of_its_own_gets_the_options_to_add(site: Job) -> None:
    decision = decide(sbatch={"partition": "gpu"}, model=RESNET, batch_size=64, gpu="a100")
    own = [f"--{name}={value}" for name, value in decision.options.items()]
    job_id = site.cluster.run(
        ["sbatch", "--parsable", "-H", "-p", "gpu", *own, "--wrap", "true"], check=True
    ).stdout.strip()
    site.ids.append(job_id)
    assert site.gres(int(job_id)) == decision.gres
    record = parse_record(decision.options["comment"])
    assert record is not None
    assert (record.estimate_mib, record.model) == (decision.peak_mib, "resnet50")


@pytest.mark.slurm
def test_a_summary_may_be_a_text_or_one_that_was_just_made(site: Job) -> None:
    by_path = decide("job.sh", model=RESNET, batch_size=64)
    by_text = decide("job.sh", model=RESNET.read_text(), batch_size=64)
    assert by_text.peak_mib == by_path.peak_mib
    traced = small_summary()
    decision = decide("job.sh", model=traced._replace(name="MyNet"))
    assert decision.peak_mib == estimate(traced, gpu="a100-40gb").peak_mib
    record = parse_record(decision.options["comment"])
    assert record is not None
    assert record.model == "MyNet"


@pytest.mark.slurm
def test_without_a_word_about_memory_it_is_sbatch(site: Job) -> None:
    decision = decide("job.sh", sbatch={"hold": True})
    assert (decision.argv, decision.reason) == (("sbatch", "--hold", "--", "job.sh"), NOTHING_ASKED)
    assert (decision.gres, decision.options, decision.estimate) == (None, {}, None)
    assert site.gres(site.submit("job.sh", sbatch={"hold": True}).job_id) == ""


@pytest.mark.slurm
def test_what_is_said_in_python_wins_over_the_script(site: Job, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#GPUMEM mem=4G on-oom=fail\ntrue\n")
    assert decide("job.sh").gres == "shard:4"
    assert decide("job.sh", mem="6G").gres == "shard:6"
    assert "oom=fail" in decide("job.sh", mem="6G").options["comment"]
    assert "oom=requeue" in decide("job.sh", on_oom="requeue").options["comment"]


@pytest.mark.slurm
def test_a_job_that_fits_nowhere_says_what_would_fit_and_is_not_submitted(site: Job) -> None:
    with pytest.raises(DoesNotFitError, match=r"(?s)Batch [0-9]+ would fit.*Use exclusive_gpu to try anyway"):
        submit("job.sh", model=RESNET, batch_size=4096)
    assert decide("job.sh", model=RESNET, batch_size=4096, exclusive_gpu=True).whole_gpu


@pytest.mark.slurm
def test_what_sbatch_refuses_is_an_error_in_its_own_words(site: Job) -> None:
    with pytest.raises(SbatchRefusedError, match=r"[Ii]nvalid"):
        submit("job.sh", mem="4G", sbatch={"time": "nonsense"})
    with pytest.raises(SbatchRefusedError, match="no-such-option"):
        submit("job.sh", mem="4G", sbatch={"no_such_option": "x"})
    assert issubclass(SbatchRefusedError, SlurmError)


@pytest.mark.slurm
def test_waiting_returns_the_jobs_own_exit_code(site: Job, tmp_path: Path) -> None:
    (tmp_path / "fails.sh").write_text("#!/bin/bash\n#SBATCH -o /dev/null\nexit 7\n")
    assert site.submit("fails.sh", mem="4G", sbatch={"wait": True}).exit_code == 7


PYTHON_BLOCKS = re.findall(
    r"```python\n(.*?)```", (EXAMPLES.parent / "user" / "python.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.slurm
@pytest.mark.parametrize("code", PYTHON_BLOCKS, ids=range(len(PYTHON_BLOCKS)))
def test_the_examples_of_the_documentation_run(site: Job, tmp_path: Path, code: str) -> None:
    for path in EXAMPLES.glob("*.*"):
        (tmp_path / path.name).symlink_to(path)
    before = set(site.cluster.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split())
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    finally:
        now = site.cluster.run(["squeue", "-h", "-o", "%i"], check=True).stdout.split()
        site.ids += [job for job in now if job not in before]
    assert (done.returncode, done.stderr) == (0, "")
    for printed in re.findall(r"print\(.*\)  # (shard.*)", code):
        assert printed in done.stdout


@pytest.mark.parametrize(
    ("script", "about", "message"),
    [
        ("none.sh", {"mem": "4G"}, "none.sh: the job script cannot be read"),
        ("#!/bin/bash\ntrue", {"mem": "lots"}, "mem: 'lots' is not a memory size"),
        ("#!/bin/bash\ntrue", {"batch_size": 8}, "batch_size says something about a model"),
        ("#!/bin/bash\ntrue", {"model": "", "batch_size": 8}, "model needs a value"),
        ("#!/bin/bash\ntrue", {"model": "none.txt", "batch_size": 8}, "none.txt: no such file"),
        ("#!/bin/bash\ntrue", {"model": str(RESNET), "batch_size": 0}, "batch_size: .*at least 1, not 0"),
        ("#!/bin/bash\ntrue", {"model": str(RESNET)}, "no batch size.*batch_size=128"),
        ("#!/bin/bash\ntrue", {"model": str(RESNET), "batch_size": 8, "optimizer": "adma"}, "'adam'"),
        ("#!/bin/bash\ntrue", {"modle": "x"}, "unknown argument 'modle'; did you mean 'model'"),
        ("#!/bin/bash\ntrue", {"mem": "4G", "args": ["x"]}, "args need a script's path"),
        (
            "#!/bin/bash\ntrue",
            {"mem": "4G", "sbatch": {"--time": "1"}},
            "'--time' is not the name of an option",
        ),
        ("#!/bin/bash\ntrue", {"mem": "4G", "sbatch": {"comment": "a\0b"}}, "null character"),
        ("echo no interpreter\n", {"mem": "4G"}, "must begin with #!"),
    ],
)
def test_wrong_input_is_told_before_slurm_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, about: Any, message: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for function in (decide, submit):
        with pytest.raises(GpumemError, match=f"(?s){message}"):
            function(script, **about)


def test_every_key_of_a_job_is_an_argument() -> None:
    assert set(JobOptions.__annotations__) == {key.replace("-", "_") for key in JOB_KEYS}
    with pytest.raises(UnknownNameError):
        decide("job.sh", nonsense=1)  # type: ignore[call-arg]


def test_no_package_or_module_bears_the_name_of_a_public_function() -> None:
    import slurm_gpumem
    import slurm_gpumem.submission as room

    folder = Path(slurm_gpumem.__file__).parent
    for name in ("estimate", "decide", "submit", "summarize"):
        assert not (folder / name).exists()
        assert not (folder / f"{name}.py").exists()
    modules = {path.stem for path in (folder / "submission").iterdir()}
    exported = {name for name in vars(room) if not name.startswith("_")} - modules
    assert not exported


def test_a_trace_under_autocast_is_the_same_job_for_an_estimate_and_for_a_submission(site: Job) -> None:
    summary = small_summary()
    said = estimate(summary, precision="amp-bf16", gpu="a100")
    decided = decide("job.sh", model=summary, precision="amp-bf16", gpu="a100")
    assert decided.estimate is not None
    assert (decided.peak_mib, decided.request_mib) == (said.peak_mib, said.request_mib)
    assert any("follows autocast" in warning for warning in decided.warnings)


def test_a_preset_of_a_file_does_not_overrule_what_a_trace_saw(site: Job, tmp_path: Path) -> None:
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "gpumem.toml").write_text('[job]\nprecision = "amp-bf16"\noptimizer = "sgd"\n')
    decided = decide("job.sh", model=small_summary(), gpu="a100")
    assert decided.peak_mib == estimate(small_summary(), gpu="a100").peak_mib
