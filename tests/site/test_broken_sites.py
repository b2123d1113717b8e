"""Broken sites on a real cluster: each case breaks a whole one, and the doctor must say so.

CASES is the list. A whole site must be OK, or nobody believes the rest.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from tests.node.conftest import needs_root
from tests.support.whole_site import WholeSite, close_whole_site, make_whole_site

pytestmark = [pytest.mark.slurm, needs_root]
USER = 65534


class Broken(NamedTuple):
    """What the doctor must say."""

    severity: str
    check: str
    words: str
    """In what it says."""
    how: Callable[[WholeSite], object] = lambda site: None
    """Breaks a whole site."""
    cluster: Tuple[str, ...] = ()
    """Lines of slurm.conf that need a cluster of their own: daemons must be started with them."""
    fields: Mapping[str, Any] = MappingProxyType({})
    """The same for the cluster's description."""


def append(path: Callable[[WholeSite], Path], text: str) -> Callable[[WholeSite], object]:
    """Add a line to a file of the site."""
    return lambda site: path(site).write_text(path(site).read_text() + text.format(root=site.root) + "\n")


def conf(key: str, value: str = "") -> Callable[[WholeSite], None]:
    """Another value of slurm.conf, or none, read by `scontrol reconfigure`."""

    def change(site: WholeSite) -> None:
        lines = site.cluster.layout.slurm_conf.read_text().splitlines()
        old = next(line for line in lines if line.startswith(f"{key}="))
        site.reconfigure(old, f"{key}={value}" if value else "")

    return change


def hooks_conf(text: str) -> Callable[[WholeSite], object]:
    return append(lambda site: site.hooks_conf, text)


def owned(path: Callable[[WholeSite], Path]) -> Callable[[WholeSite], object]:
    return lambda site: os.chown(path(site), USER, USER)


def own_folder(site: WholeSite) -> Path:
    """A folder below the site's that everybody may change."""
    folder = site.root / "bin" / "open"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def other_python(site: WholeSite) -> None:
    venv = own_folder(site)
    (venv / "python3").symlink_to(site.root / "python" / "bin" / "python3")
    hooks_conf(f"python={venv}/python3")(site)


def user_spool(site: WholeSite) -> None:
    site.set("node", "spool", str(own_folder(site)))


def user_store(site: WholeSite) -> None:
    store = site.root / "bin" / "store"
    store.mkdir()
    os.chown(store, USER, USER)
    site.set("accounting", "dir", str(store))


def crlf(site: WholeSite) -> None:
    hook = site.hooks / "prolog.sh"
    hook.write_bytes(hook.read_bytes().replace(b"\n", b"\r\n"))


def edited(path: Callable[[WholeSite], Path], old: str, new: str) -> Callable[[WholeSite], None]:
    def change(site: WholeSite) -> None:
        text = path(site).read_text()
        assert old in text
        path(site).write_text(text.replace(old, new))

    return change


def registered_job(site: WholeSite) -> None:
    (site.root / "run" / "jobs" / "4711.json").write_text("{}")


CASES: Dict[str, Broken] = {
    # The eleven of the audit, and their kin.
    "hook path that does not exist": Broken(
        "critical",
        "hook-missing",
        "Prolog=/nowhere/prolog.sh does not exist",
        conf("Prolog", "/nowhere/prolog.sh"),
    ),
    "interpreter without the package": Broken(
        "critical",
        "no-package",
        "/usr/bin/python3 cannot load slurm_gpumem",
        hooks_conf("python=/usr/bin/python3"),
    ),
    "interpreter that does not exist": Broken(
        "critical", "no-package", "/opt/none/python3 does not exist", hooks_conf("python=/opt/none/python3")
    ),
    "world-writable hook": Broken(
        "critical",
        "not-only-root",
        "everybody can change {root}/hooks/prolog.sh (mode 0777)",
        lambda site: (site.hooks / "prolog.sh").chmod(0o777),
    ),
    "group-writable hook": Broken(
        "warning",
        "group-may-write",
        "can change {root}/hooks/epilog.sh (mode 0775)",
        lambda site: (site.hooks / "epilog.sh").chmod(0o775),
    ),
    "folder of the hooks writable by all": Broken(
        "critical",
        "not-only-root",
        "everybody can change {root}/hooks (mode 0777)",
        lambda site: site.hooks.chmod(0o777),
    ),
    "folder above it writable by all": Broken(
        "critical",
        "not-only-root",
        "everybody can change {root} (mode 0777)",
        lambda site: site.root.chmod(0o777),
    ),
    "no TaskProlog": Broken("critical", "hook-unset", "no TaskProlog", conf("TaskProlog")),
    "misspelt value": Broken(
        "critical",
        "site-file",
        "node.mps must be one of per-user",
        lambda site: site.set("node", "mps", "mpss"),
    ),
    "misspelt key": Broken(
        "warning", "site-file", "did you mean 'spool'", lambda site: site.set("node", "spol", "/x")
    ),
    "broken TOML": Broken(
        "critical", "site-file", "is not valid TOML", lambda site: site.toml.write_text("[sharing\n")
    ),
    "80 shards on a 40 GiB GPU": Broken(
        "warning",
        "too-many-shards",
        "n[1-2]: 80 shards of 1024 MiB on one a100, which has 40960 MiB",
        fields={"nodes": default_nodes(2, gpu_memory_mib=80 * 1024)},
    ),
    "more shards than any GPU of its name has memory": Broken(
        "critical",
        "too-many-shards",
        "40 shards of 1024 MiB on one t4, which has 15360 MiB",
        fields={"nodes": default_nodes(1, gpu_type="t4")},
    ),
    "impossible spool": Broken(
        "critical",
        "spool-unusable",
        "/proc/gpumem/records",
        lambda site: site.set("node", "spool", "/proc/gpumem/records"),
    ),
    "spool below a file": Broken(
        "critical",
        "spool-unusable",
        "Not a directory",
        lambda site: site.set("node", "spool", f"{site.toml}/records"),
    ),
    "fewer shards in gres.conf than in slurm.conf": Broken(
        "critical",
        "gres-conf",
        "n[1-2]: 160 shard in slurm.conf, 150 in gres.conf",
        edited(lambda site: site.conf / "gres.conf", "Count=160", "Count=150"),
    ),
    "all GPU nodes drained": Broken(
        "critical",
        "nodes-down",
        "no node with shares is up: n[1-2]: kernel update",
        lambda site: site.cluster.run(
            ["scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=kernel update"], check=True
        ),
    ),
    "one node drained by its Prolog": Broken(
        "warning",
        "nodes-down",
        "n1: Prolog error",
        lambda site: site.cluster.run(
            ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=Prolog error"], check=True
        ),
    ),
    "no job_submit.lua": Broken(
        "critical",
        "lua-missing",
        "job_submit.lua is not there",
        lambda site: (site.conf / "job_submit.lua").unlink(),
    ),
    "no gpumem.lua": Broken(
        "critical",
        "lua-missing",
        "gpumem.lua cannot be read",
        lambda site: (site.conf / "gpumem.lua").unlink(),
    ),
    "no gpumem_line.lua": Broken(
        "critical",
        "lua-missing",
        "gpumem_line.lua cannot be read",
        lambda site: (site.conf / "gpumem_line.lua").unlink(),
    ),
    "EpilogSlurmctld not executable": Broken(
        "critical",
        "hook-not-run",
        "user root cannot execute it",
        lambda site: (site.hooks / "epilog_slurmctld.sh").chmod(0o644),
    ),
    # More that we thought of.
    "no PrologFlags": Broken("warning", "prolog-flags", "PrologFlags=", conf("PrologFlags")),
    "a Prolog may hang forever": Broken(
        "warning", "prolog-timeout", "no PrologEpilogTimeout", conf("PrologEpilogTimeout")
    ),
    "a Prolog is killed too early": Broken(
        "warning", "prolog-timeout", "killed after 5 s", conf("PrologEpilogTimeout", "5")
    ),
    "no Epilog": Broken("warning", "hook-unset", "no Epilog", conf("Epilog")),
    "no Prolog": Broken("critical", "hook-unset", "no Prolog", conf("Prolog")),
    "hook of a user": Broken(
        "critical",
        "not-only-root",
        "{root}/hooks/task_epilog.sh belongs to user",
        owned(lambda site: site.hooks / "task_epilog.sh"),
    ),
    "hooks.conf writable by all": Broken(
        "critical", "not-only-root", "hooks.conf (mode 0666)", lambda site: site.hooks_conf.chmod(0o666)
    ),
    "gpumem.toml writable by all": Broken(
        "critical", "not-only-root", "gpumem.toml (mode 0666)", lambda site: site.toml.chmod(0o666)
    ),
    "job_submit.lua of a user": Broken(
        "critical",
        "not-only-root",
        "job_submit.lua belongs to",
        owned(lambda site: site.conf / "job_submit.lua"),
    ),
    "interpreter in a folder of users": Broken(
        "critical", "not-only-root", "bin/open (mode 0777)", other_python
    ),
    "package of a user": Broken(
        "critical",
        "not-only-root",
        "slurm_gpumem/api.py belongs to user",
        owned(lambda site: site.package / "api.py"),
    ),
    "hook with the line ends of Windows": Broken("critical", "hook-not-run", "line ends of Windows", crlf),
    "TaskProlog that users cannot run": Broken(
        "critical",
        "hook-not-run",
        "users cannot execute it",
        lambda site: (site.hooks / "task_prolog.sh").chmod(0o700),
    ),
    "hooks.conf that users cannot read": Broken(
        "critical", "cannot-read", "hooks.conf as user nobody", lambda site: site.hooks_conf.chmod(0o600)
    ),
    "gpumem.toml that users cannot read": Broken(
        "critical", "cannot-read", "gpumem.toml as user nobody", lambda site: site.toml.chmod(0o600)
    ),
    "hooks of another version": Broken(
        "critical",
        "hook-older",
        "Prolog runs slurm_gpumem.node.gone",
        edited(lambda site: site.hooks / "hand_over.sh", "slurm_gpumem.node.hook", "slurm_gpumem.node.gone"),
    ),
    "package of another version": Broken(
        "warning",
        "versions-differ",
        "the hooks run slurm_gpumem 0.0.9",
        edited(lambda site: site.package / "__init__.py", '__version__ = "', '__version__ = "0.0.9" or "'),
    ),
    "the site's own next hook is gone": Broken(
        "critical", "next-hook", "/etc/none/prolog", hooks_conf("next_prolog=/etc/none/prolog")
    ),
    "hooks read a gpumem.toml that is not there": Broken(
        "warning", "site-file-missing", "/nowhere/gpumem.toml", hooks_conf("site_config=/nowhere/gpumem.toml")
    ),
    "spool in a folder of users": Broken("critical", "not-only-root", "bin/open", user_spool),
    "store of a user": Broken("critical", "not-only-root", "bin/store belongs to user", user_store),
    "no MPS": Broken(
        "critical",
        "no-mps",
        "/usr/bin/none is not there",
        lambda site: site.set("devcluster", "mps_control", "/usr/bin/none"),
    ),
    "a driver that cannot serve all users at once": Broken(
        "warning",
        "no-shared-mps",
        "/bin/true has no -multiuser-server",
        lambda site: (site.set("devcluster", "mps_control", "/bin/true"), site.set("node", "mps", "shared")),
    ),
    "no library that lets jobs leave their MPS server": Broken(
        "warning",
        "no-end-library",
        "{root}/hooks/libgpumem_end.so is not there",
        lambda site: (site.hooks / "libgpumem_end.so").unlink(),
    ),
    "a library of another machine": Broken(
        "warning",
        "no-end-library",
        "{root}/hooks/libgpumem_end.so cannot be loaded",
        lambda site: (site.hooks / "libgpumem_end.so").write_bytes(b"\x7fELF"),
    ),
    "a driver without a limit of its own": Broken(
        "warning",
        "no-driver-limit",
        "has no nvmlDeviceSetMemoryLimits_v1",
        lambda site: site.set("node", "driver_limit", True),
    ),
    "no driver": Broken(
        "critical",
        "no-driver",
        "NVIDIA's driver library",
        lambda site: site.toml.write_text(
            "\n".join(line for line in site.toml.read_text().splitlines() if not line.startswith("ledger"))
        ),
    ),
    "no sampler beside a job": Broken("warning", "no-sampler", "1 shared job here", registered_job),
    "device that is not there": Broken(
        "critical",
        "no-device",
        "/dev/nvidia-none of gres.conf",
        append(lambda site: site.conf / "gres.conf", "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia-none"),
    ),
    "Slurm's commands are elsewhere": Broken(
        "warning",
        "no-commands",
        "/opt/none has no squeue",
        lambda site: site.set("node", "slurm_bin", "/opt/none"),
    ),
    "table of a partition that does not exist": Broken(
        "warning",
        "unknown-name",
        "there is no partition gpus",
        lambda site: site.set("sharing.partition.gpus", "max_slowdown", 1.2),
    ),
    "readers that are no group": Broken(
        "warning",
        "unknown-name",
        "there is no group gpu-admin",
        lambda site: site.set("accounting", "readers", ["gpu-admin"]),
    ),
    "job_submit.lua without our lines": Broken(
        "warning",
        "plugin-off",
        "does not call gpumem.lua",
        lambda site: (site.conf / "job_submit.lua").write_text("function slurm_job_submit() return 0 end\n"),
    ),
    "job_submit.lua with a syntax error": Broken(
        "critical",
        "lua-broken",
        "job_submit.lua does not load",
        append(lambda site: site.conf / "job_submit.lua", "end end"),
    ),
    "gpumem_site.lua of another cluster": Broken(
        "warning",
        "site-table",
        "does not match the cluster",
        edited(lambda site: site.conf / "gpumem_site.lua", "shares = 40", "shares = 39"),
    ),
    "nowhere for EpilogSlurmctld to leave its sign": Broken(
        "warning", "recovery-unproven", "hooks.conf has no state_dir", hooks_conf("state_dir=")
    ),
    "plug-in not in slurm.conf": Broken(
        "warning", "plugin-off", "JobSubmitPlugins=", fields={"job_submit_lua": None}
    ),
    "shares not accounted": Broken(
        "warning",
        "accounting-tres",
        "has no gres/shard",
        cluster=("AccountingStorageTRES=gres/gpu",),
        fields={"accounting": True},
    ),
}


@pytest.fixture(scope="module")
def whole(make_module_cluster: Callable[..., Cluster]) -> Iterator[WholeSite]:
    site = make_whole_site(make_module_cluster)
    yield site
    close_whole_site(site)


@pytest.fixture
def site(whole: WholeSite) -> Iterator[WholeSite]:
    """The whole site, whole again afterwards."""
    yield whole
    whole.reset()


def test_a_whole_site_is_ok_on_every_line(site: WholeSite) -> None:
    answer = site.doctor()
    assert (answer["findings"], answer["status"]) == ([], "ok")


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if not case.cluster and not case.fields]
)
def test_a_broken_site_is_found(case: str, site: WholeSite) -> None:
    CASES[case].how(site)
    _is_found(CASES[case], site)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.cluster or case.fields])
def test_a_site_that_was_started_broken_is_found(case: str, make_cluster: Callable[..., Cluster]) -> None:
    site = make_whole_site(make_cluster, *CASES[case].cluster, **CASES[case].fields)
    try:
        _is_found(CASES[case], site)
    finally:
        close_whole_site(site)


def test_the_list_is_long_enough() -> None:
    assert len(CASES) >= 22


def _is_found(broken: Broken, site: WholeSite) -> None:
    answer = site.doctor()
    found = {(f["severity"], f["check"]): f["what"] for f in answer["findings"]}
    said = [
        f["what"]
        for f in answer["findings"]
        if (f["severity"], f["check"]) == (broken.severity, broken.check)
    ]
    assert any(broken.words.format(root=site.root) in what for what in said), found
    assert answer["exit_code"] == {"critical": 2, "warning": 1}[answer["status"]]
