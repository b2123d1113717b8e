"""What `gpumem setup --apply` changes and `--undo` takes back, on a live cluster and ended at every step."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.data import HOOKS_CONF
from slurm_gpumem.devcluster.cluster import Cluster, slurm_root_in_use
from slurm_gpumem.devcluster.spec import NodeSpec, Undivided
from slurm_gpumem.errors import UsageError
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.site.nodes import memory_in_table
from slurm_gpumem.site.setup import journal
from slurm_gpumem.site.setup.journal import FOLDER, KEPT, apply_files, in_order, undo
from slurm_gpumem.site.setup.merge import taken_back
from slurm_gpumem.site.setup.setup import SetupOptions, propose
from slurm_gpumem.site.snapshot import gather, with_hidden_nodes
from slurm_gpumem.toml_file import load_toml
from tests.support.slurm_daemons import restart_slurmctld, restart_slurmd
from tests.support.waiting import until

OWN_FILTER = """\
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset) return slurm.SUCCESS end
"""


def digests(folder: Path) -> Dict[str, str]:
    """Every file below it, with its rights."""
    return {
        str(
            path.relative_to(folder)
        ): f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def gpumem(cluster: Cluster, *args: str) -> Any:
    program = str(Path(sys.executable).with_name("gpumem"))
    done = cluster.run([program, "setup", *args], timeout_s=120)
    assert done.returncode == 0, done.stderr
    return done


def site_without_shares(make_cluster: Any) -> Cluster:
    """The cluster as it was before anybody thought of sharing, with its nodes in a file of their own."""
    gpus = (Undivided("a100", 4, 40960),)
    made: Cluster = make_cluster(
        nodes=(NodeSpec("n1", gpus=0, instances=gpus),), extra_conf=("GresTypes=gpu", "ReturnToService=2")
    )
    conf = made.layout.conf
    made.layout.site_config.unlink()
    lines = (conf / "slurm.conf").read_text().splitlines(keepends=True)
    (conf / "nodes.conf").write_text("".join(line for line in lines if line.startswith("NodeName")))
    others = [line for line in lines if not line.startswith("NodeName")]
    (conf / "slurm.conf").write_text("".join([*others, "Include nodes.conf\n"]))
    (conf / "cli_filter.lua").write_text(OWN_FILTER)
    (conf / "cli_filter.lua").chmod(0o640)
    return made


def restart(cluster: Cluster) -> None:
    """slurmctld, then slurmd, as after a change of GresTypes."""
    restart_slurmctld(cluster)
    restart_slurmd(cluster)
    until(lambda: {"idle", "mix", "mixed"} & set(cluster.run(["sinfo", "-h", "-o", "%T"]).stdout.split()))


def submitted(cluster: Cluster, text: str = "", *options: str) -> str:
    script = cluster.layout.root / "job.sh"
    script.write_text(f"#!/bin/sh\n{text}\nsleep 600\n")
    done = cluster.run(["sbatch", "--parsable", "-o", "/dev/null", *options, str(script)])
    assert done.returncode == 0, done.stderr
    return str(done.stdout.strip())


def job(cluster: Cluster, number: str, field: str) -> str:
    return str(cluster.run(["squeue", "-h", "-j", number, "-O", f"{field}:200"]).stdout.strip())


def test_apply_then_undo_leaves_every_byte_as_it_was_and_no_submission_fails(make_cluster: Any) -> None:
    cluster = site_without_shares(make_cluster)
    conf = cluster.layout.conf
    before = digests(conf)
    running = submitted(cluster, "", "--gres=gpu:1", "--mem=100")
    until(lambda: job(cluster, running, "statecompact") == "R")

    # To observe, no daemon is restarted: the next job is estimated and recorded, and stays as it is.
    said = gpumem(cluster, "--apply").stderr
    assert "no daemon needs a restart" in said
    assert "systemctl" not in said
    seen = submitted(cluster, "#GPUMEM mem=12G", "--gres=gpu:1", "-H")
    assert "gpu" in job(cluster, seen, "tres-per-node")
    record = parse_record(job(cluster, seen, "comment"))
    assert record is not None
    assert record.shards == 0

    # Shares, before slurmctld knows of them: whoever asks for some gets a whole GPU.
    said = gpumem(cluster, "--apply", "--mode", "opt-in", "--mps", "shared").stderr
    assert "then, as no job shares before: gpumem setup --apply --mode opt-in\n" in said
    asked = submitted(cluster, "#GPUMEM mem=12G", "--gres=gpu:1", "-H")
    assert "shard" not in job(cluster, asked, "tres-per-node")
    restart(cluster)
    asked = submitted(cluster, "#GPUMEM mem=12G", "--gres=gpu:1", "-H")
    assert "shard" not in job(cluster, asked, "tres-per-node")
    gpumem(cluster, "--apply", "--mode", "opt-in")
    assert "Nothing to change" in gpumem(cluster, "--apply").stdout
    shared = submitted(cluster, "#GPUMEM mem=12G\n#SBATCH --mem=100", "--gres=gpu:1")
    until(lambda: job(cluster, shared, "statecompact") == "R")
    assert "shard" in job(cluster, shared, "tres-per-node")
    tables = load_toml(cluster.layout.site_config)
    assert (tables["sharing"]["mode"], tables["node"]["mps"]) == ("opt-in", "shared")
    assert job(cluster, running, "statecompact") == "R"

    cluster.run(["scancel", shared], check=True)
    said = gpumem(cluster, "--undo").stderr
    assert digests(conf) == before
    assert "once no job has any" in said
    submitted(cluster, "#GPUMEM mem=12G", "--gres=gpu:1", "-H")
    restart(cluster)
    submitted(cluster, "#GPUMEM mem=12G", "--gres=gpu:1", "-H")
    assert job(cluster, running, "statecompact") == "R"
    assert "nothing to undo" in gpumem(cluster, "--undo").stderr


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Run it in a process that is killed before its step of that number; whether it came that far."""
    pid = os.fork()
    if pid == 0:
        left = [step]

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def made(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return made

        for name in ("open", "write", "replace", "unlink", "mkdir", "rmdir", "utime", "fchmod", "fchown"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            action()
            os._exit(0)
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_killed_at_any_step_every_submission_goes_on_and_it_can_be_started_again(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = site_without_shares(make_cluster)
    conf = cluster.layout.conf
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(journal, "_UNDER_WAY_S", 0)
    before = digests(conf)
    options = SetupOptions(mode="known", applies=True, slurm_root=slurm_root_in_use())
    proposal = propose(options, with_hidden_nodes(gather()), memory_in_table)
    wanted = {name: text.encode() for name, text in proposal.changes().items()}
    seen = {name: proposal.current[name].encode() if name in proposal.current else None for name in wanted}
    assert {"slurm.conf", "nodes.conf", "gres.conf", "cli_filter.lua", "job_submit.lua"} <= set(wanted)

    def applied() -> None:
        apply_files(conf, wanted, seen)

    def undone() -> None:
        undo(conf)

    applied()
    after = without_journal(conf)
    undone()
    assert digests(conf) == before
    steps = 0
    while killed_at(steps + 1, applied):
        steps += 1
        submitted(cluster, "", "-H")
        if steps % 2:
            applied()
            assert without_journal(conf) == after
        undone()
        assert digests(conf) == before
    assert steps > 50
    undone()
    applied()
    back = 0
    while killed_at(back + 1, undone):
        back += 1
        submitted(cluster, "", "-H")
        undone()
        assert digests(conf) == before
        applied()
    assert back > 40


def without_journal(folder: Path) -> Dict[str, str]:
    return {name: found for name, found in digests(folder).items() if not name.startswith(f"{FOLDER}/")}


BEFORE = b"A=1\r\nGresTypes=gpu\nNodeName=n1 Gres=gpu:4 State=UNKNOWN \xff\n"
AFTER = (
    b"A=1\r\nGresTypes=gpu,shard\nNodeName=n1 Gres=gpu:4,shard:8 State=UNKNOWN \xff\n"
    b"# Sharing of GPUs\nPrologFlags=Alloc\nJobSubmitPlugins=lua\n"
)


@pytest.mark.parametrize(
    ("edit", "back", "lost"),
    [
        (("A=1", "A=2"), ("A=1", "A=2"), ""),
        (("State", "Weight=2 State"), ("State", "Weight=2 State"), ""),
        ((",shard:8", ",craynet:1,shard:8"), ("gpu:4", "gpu:4,craynet:1"), ""),
        (("gpu,shard", "gpu,shard,nic"), ("Types=gpu", "Types=gpu,nic"), ""),
        (("Alloc\n", "Alloc\nMine=2\n"), ("\xff\n", "\xff\nMine=2\n"), ""),
        (("lua\n", "lua\nMine=2\n"), ("\xff\n", "\xff\nMine=2\n"), ""),
        (("# Sharing of GPUs\n", ""), ("", ""), ""),
        (("Plugins=lua", "Plugins=lua,mine"), ("", ""), "JobSubmitPlugins=lua,mine"),
        (("shard:8", "shard:6"), ("", ""), ",shard:6"),
    ],
)
def test_what_others_wrote_since_stays_and_what_cannot_is_named_and_kept(
    edit: Any, back: Any, lost: str, tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_bytes(BEFORE)
    apply_files(tmp_path, {"slurm.conf": AFTER}, {"slurm.conf": BEFORE})
    edited = AFTER.decode("latin-1").replace(*edit).encode("latin-1")
    conf.write_bytes(edited)
    undone = undo(tmp_path)
    assert undone is not None
    assert conf.read_bytes() == BEFORE.decode("latin-1").replace(*back).encode("latin-1")
    assert undone.lost == ((("slurm.conf", lost),) if lost else ())
    copy = tmp_path / f"slurm.conf{KEPT}"
    assert (copy.read_bytes() if lost else b"") == (edited if lost else b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slurm.conf", *([copy.name] if lost else [])]


def test_a_new_file_that_others_edited_goes_out_of_use_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_UNDER_WAY_S", 0)
    lua = b"-- theirs from here\nlocal x = 1 -- gpumem\n"
    files = {"gpumem.toml": b"[sharing]\n", "cli_filter.lua": lua, "gpumem_site.lua": b"return {}\n"}
    apply_files(tmp_path, files, dict.fromkeys(files))
    (tmp_path / "gpumem.toml").write_bytes(b"[sharing]\nmax_slowdown = 3\n")
    (tmp_path / "cli_filter.lua").write_bytes(b"mine()\n" + lua)
    # Changed by us again, it is still theirs, too.
    again = b"[sharing]\nmax_slowdown = 3\nmode = 1\n"
    apply_files(tmp_path, {"gpumem.toml": again}, {"gpumem.toml": (tmp_path / "gpumem.toml").read_bytes()})
    undone = undo(tmp_path)
    assert undone is not None
    assert undone.kept == ("gpumem.toml",)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        f"gpumem.toml{KEPT}": again,
        "cli_filter.lua": b"mine()\n-- theirs from here\n",
    }


def test_a_file_that_changed_since_it_was_shown_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_bytes(b"theirs\n")
    with pytest.raises(UsageError, match="was changed meanwhile"):
        apply_files(tmp_path, {"slurm.conf": AFTER}, {"slurm.conf": BEFORE})
    assert (tmp_path / "slurm.conf").read_bytes() == b"theirs\n"


def test_users_read_a_new_folder_whatever_roots_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        apply_files(tmp_path, {HOOKS_CONF: b"python=/x\n"}, {HOOKS_CONF: None})
    finally:
        os.umask(before)
    place = tmp_path / HOOKS_CONF
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o644, 0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives files away")
def test_root_follows_no_link_and_believes_no_journal_of_others(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret\n")
    site = tmp_path / "site"
    site.mkdir()
    (site / "job_submit.lua").symlink_to(secret)
    os.chown(site / "job_submit.lua", 65534, 65534, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to user 65534"):
        apply_files(site, {"job_submit.lua": b"x"}, {"job_submit.lua": b"secret\n"})
    assert secret.read_bytes() == b"secret\n"
    os.chown(site / FOLDER, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to user 65534"):
        undo(site)


def test_a_link_of_roots_stays_one_and_its_target_is_what_changes(tmp_path: Path) -> None:
    (tmp_path / "managed").write_bytes(BEFORE)
    site = tmp_path / "site"
    site.mkdir()
    (site / "slurm.conf").symlink_to("../managed")
    apply_files(site, {"slurm.conf": AFTER}, {"slurm.conf": BEFORE})
    assert ((site / "slurm.conf").is_symlink(), (tmp_path / "managed").read_bytes()) == (True, AFTER)
    undo(site)
    assert ((site / "slurm.conf").is_symlink(), (tmp_path / "managed").read_bytes()) == (True, BEFORE)


def test_a_submission_finds_what_slurm_conf_names() -> None:
    names = ["slurm.conf", "cli_filter.lua", "nodes.conf", "gumem.conf", "gpumem_filter.lua", "gres.conf"]
    assert in_order(names)[::5] == ["gpumem_filter.lua", "slurm.conf"]
    assert in_order(names).index("cli_filter.lua") < in_order(names).index("gres.conf")


LINES = st.lists(st.sampled_from(["a=1\n", "b=2,3\n", "c d=4\n", "\n"]), max_size=8)


@given(LINES, LINES, st.data())
def test_lines_that_others_add_are_the_only_difference_afterwards(
    before: List[str], ours: List[str], data: st.DataObject
) -> None:
    was, after = "".join(before), "".join(ours)
    assert taken_back(was, after, after) == (was, ())
    at = data.draw(st.integers(0, len(ours)))
    now = "".join([*ours[:at], "# theirs\n", *ours[at:]])
    merged = taken_back(was, after, now)
    assert merged.text.replace("# theirs\n", "") == was
    assert "# theirs" in merged.text
