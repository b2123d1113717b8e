"""What is found on a host, also as an attacker sees it, and for a SlurmUser who is not root."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

import pytest

import slurm_gpumem
from slurm_gpumem.site.complete_snapshot import examine
from slurm_gpumem.site.doctor import probe_node
from slurm_gpumem.site.doctor.check_nodes import parse_gres_conf
from slurm_gpumem.site.doctor.hosts import HostReport, Question, takes_jobs
from slurm_gpumem.site.doctor.probe_host import Host, become, parse_settings
from tests.node.conftest import REPOSITORY, needs_root
from tests.recovery.conftest import install_package
from tests.support.kept import assert_kept
from tests.support.waiting import remove_tree

USER = 65534
STRANGER = 4242424
"""A user and a group that nobody knows."""
SLURM_USER = 1


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """The hooks' Python with the package, for tests that change neither."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-"))
    folder.chmod(0o755)
    yield install_package(folder / "python")
    remove_tree(folder)


@pytest.fixture
def hooks(state_folder: Path, python: Path) -> Path:
    """Hooks and a gpumem.toml, all root's."""
    folder = state_folder / "hooks"
    shutil.copytree(REPOSITORY / "prolog", folder)
    toml = state_folder / "gpumem.toml"
    toml.write_text(
        f'[node]\nspool = "{state_folder}/spool"\nmps = "timeslice"\n'
        f'[devcluster]\nledger = "{state_folder}"\n'
    )
    (folder / "hooks.conf").write_text(f"python={python}\nsite_config={toml}\nrun_dir={state_folder}/run\n")
    return folder


def asked(*paths: str) -> Question:
    keys = {"prolog.sh": "Prolog", "epilog_slurmctld.sh": "EpilogSlurmctld", "task_epilog.sh": "TaskEpilog"}
    keys["task_prolog.sh"] = "TaskProlog"
    uids = (0, SLURM_USER)
    return Question(tuple((keys[Path(path).name], path) for path in paths), (), (), uids, (0, 1), SLURM_USER)


def look(hooks: Path, *names: str) -> HostReport:
    return examine(asked(*(str(hooks / name) for name in names)))


def checks(report: HostReport) -> List[str]:
    return [check for check, _ in report.faults]


@needs_root
def test_what_is_right_has_no_fault(hooks: Path) -> None:
    report = look(hooks, "prolog.sh", "epilog_slurmctld.sh", "task_epilog.sh")
    assert (report.faults, report.unseen) == ((), ())
    assert report.facts["version"]


def mode(name: str, bits: int) -> Callable[[Path], object]:
    return lambda hooks: (hooks / name).chmod(bits)


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda hooks: (hooks / name).write_bytes(
        (hooks / name).read_bytes().replace(old.encode(), new.encode())
    )


def conf(text: str) -> Callable[[Path], object]:
    """Another line of hooks.conf."""
    return lambda hooks: (hooks / "hooks.conf").write_text((hooks / "hooks.conf").read_text() + text + "\n")


PROLOG, WINDOWS = "prolog.sh", ("hook-not-run", "line ends of Windows")
GONE = ("hook-older", "Prolog runs slurm_gpumem.node.gone")
FOUND: Dict[str, Tuple[str, Callable[[Path], object], Tuple[str, str]]] = {
    "not there": (PROLOG, lambda hooks: (hooks / PROLOG).unlink(), ("hook-missing", "Prolog=")),
    "everybody may change it": (PROLOG, mode(PROLOG, 0o777), ("not-only-root", "(mode 0777)")),
    "a group may change it": (PROLOG, mode(PROLOG, 0o775), ("group-may-write", "(mode 0775)")),
    "open settings": (PROLOG, mode("hooks.conf", 0o666), ("not-only-root", "(mode 0666)")),
    "root cannot run it": (PROLOG, mode(PROLOG, 0o644), ("hook-not-run", "root cannot execute it")),
    "users cannot": ("task_prolog.sh", mode("task_prolog.sh", 0o700), ("hook-not-run", "users cannot")),
    "line ends": (PROLOG, edited(PROLOG, "\n", "\r\n"), WINDOWS),
    "closed settings": ("task_epilog.sh", mode("hooks.conf", 0o600), ("cannot-read", "as user nobody")),
    "another version": (PROLOG, edited("hand_over.sh", "node.hook", "node.gone"), GONE),
    "no interpreter": (PROLOG, conf("python=/opt/none/python3"), ("no-package", "does not exist")),
    "another Python": (PROLOG, conf("python=/usr/bin/python3"), ("no-package", "cannot load")),
    "no next hook": (PROLOG, conf("next_prolog=/etc/none"), ("next-hook", "/etc/none")),
    "no gpumem.toml": (PROLOG, conf("site_config=/no/g.toml"), ("site-file-missing", "/no/g.toml")),
}


@needs_root
@pytest.mark.parametrize("case", FOUND)
def test_what_is_wrong_with_hooks_is_found(hooks: Path, case: str) -> None:
    name, change, (check, words) = FOUND[case]
    change(hooks)
    assert any(words in what for found, what in look(hooks, name).faults if found == check)


@needs_root
def test_all_that_the_prolog_and_the_sampler_lack_is_found(hooks: Path) -> None:
    toml, run = hooks.parent / "gpumem.toml", hooks.parent / "run"
    paths = 'spool = "/proc/gpumem"\nslurm_bin = "/opt/none"\nmps = "per-user"\ndriver_limit = true\n'
    toml.write_text(f'[node]\n{paths}[devcluster]\nmps_control = "/usr/bin/none"\n')
    (run / "jobs").mkdir(parents=True)
    (run / "jobs" / "7.json").write_text("{}")
    report = look(hooks, PROLOG)
    assert {"spool-unusable", "no-mps", "no-end-library", "no-commands", "no-driver", "no-sampler"} <= set(
        checks(report)
    )
    assert any("nvmlDeviceSetMemoryLimits_v1" in what for _, what in report.faults)
    spool = hooks.parent / "open"
    spool.mkdir()
    spool.chmod(0o777)
    toml.write_text(f'[node]\nspool = "{spool}"\nmps = "shared"\n[devcluster]\nmps_control = "/bin/true"\n')
    (hooks / "libgpumem_end.so").write_bytes(b"\x7fELF")
    said = look(hooks, PROLOG).faults
    assert ("no-shared-mps", "/bin/true has no -multiuser-server") in said
    assert ("not-only-root", f"everybody can write to {spool} (the spool)") in said
    assert any(what.startswith(f"{hooks}/libgpumem_end.so cannot be loaded") for _, what in said)


@needs_root
def test_every_program_of_a_pattern_and_every_other_file_is_looked_at(hooks: Path) -> None:
    (hooks / "epilog.sh").chmod(0o777)
    table = hooks.parent / "gpumem_site.lua"
    table.touch()
    os.chown(table, USER, USER)
    gone = "/dev/nvidia-none"
    report = examine(Question((("Prolog", f"{hooks}/[ep]*log.sh"),), (str(table),), (gone,), (0,), (0,)))
    said = [what for _, what in report.faults]
    assert f"everybody can change {hooks}/epilog.sh (mode 0777)" in said
    assert f"{table} belongs to user nobody" in said
    assert any(what.startswith(gone) for what in said)


@needs_root
def test_a_prolog_without_the_part_that_it_sources_is_found(hooks: Path) -> None:
    (hooks / "hand_over.sh").unlink()
    assert look(hooks, "prolog.sh").faults == (
        ("hook-older", f"Prolog needs {hooks}/hand_over.sh, which does not exist"),
    )


@needs_root
def test_each_hook_that_starts_a_python_is_known_to_need_it(hooks: Path) -> None:
    keys = {"prolog.sh": "Prolog", "epilog.sh": "Epilog", "task_epilog.sh": "TaskEpilog"}
    for name, key in {**keys, "epilog_slurmctld.sh": "EpilogSlurmctld"}.items():
        text = (hooks / name).read_text() + (hooks / "hand_over.sh").read_text()
        assert Host(Question()).hook(key, str(hooks / name))["modules"], text


@needs_root
def test_a_part_of_the_prolog_that_others_may_write_is_found(hooks: Path) -> None:
    (hooks / "hand_over.sh").chmod(0o777)
    assert checks(look(hooks, "prolog.sh")) == ["not-only-root"]


@needs_root
def test_the_python_of_plain_sbatch_is_tried_as_a_user(python: Path, state_folder: Path) -> None:
    conf = state_folder / "filter.conf"
    conf.touch(0o644)

    def faults(program: object) -> List[Tuple[str, str]]:
        return list(examine(Question(filter_python=str(program), filter_conf=str(conf))).faults)

    def script(text: str) -> Path:
        program = state_folder / "command.sh"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return program

    assert faults(python) == []
    for program, said in (
        ("/nowhere/python", "is not there"),
        ("python3", "is no whole path"),
        ("/usr/bin/false", "cannot be run: no reason given"),
        (script("echo 0.0.9"), "has slurm_gpumem 0.0.9"),
        ("/usr/bin/env", "cannot be run"),
    ):
        ((check, what),) = faults(program)
        assert (check, said in what) == ("no-filter", True), what
    for mode, owner in ((0o664, 0), (0o646, 0), (0o644, USER)):
        conf.chmod(mode)
        os.chown(conf, owner, -1)
        assert faults(python) == [("no-filter", f"{conf} is not root's, or others may write it")]
    os.chown(conf, 0, -1)
    conf.chmod(0o640)
    assert faults(python) == [("no-filter", f"{conf} cannot be read by user nobody: its Python is not taken")]
    conf.chmod(0o644)
    assert faults("")[0][0] == "no-filter"
    # As nobody, not as root; and not at all where a user could have changed it.
    program = script(f"id -u > {state_folder}/mark/uid\necho {slurm_gpumem.__version__}")
    mark = state_folder / "mark"
    mark.mkdir()
    mark.chmod(0o777)
    assert faults(program) == []
    assert (mark / "uid").read_text() == f"{USER}\n"
    (mark / "uid").unlink()
    program.chmod(0o777)
    assert [check for check, _ in faults(program)] == ["not-only-root"]
    assert not (mark / "uid").exists()


@needs_root
def test_a_slurm_user_who_cannot_read_the_settings_is_found(hooks: Path) -> None:
    toml = hooks.parent / "gpumem.toml"
    toml.chmod(0o640)
    assert look(hooks, "epilog_slurmctld.sh").faults == (
        ("cannot-read", f"EpilogSlurmctld cannot read {toml} as user daemon"),
    )
    assert look(hooks, "prolog.sh").faults == ()


@needs_root
def test_a_folder_that_the_slurm_user_cannot_enter_is_found(hooks: Path) -> None:
    hooks.chmod(0o700)
    assert checks(look(hooks, "epilog_slurmctld.sh")) == ["hook-not-run"]


@needs_root
def test_files_of_the_slurm_user_are_trusted(hooks: Path) -> None:
    os.chown(hooks / "epilog_slurmctld.sh", SLURM_USER, SLURM_USER)
    assert look(hooks, "epilog_slurmctld.sh").faults == ()


@needs_root
@pytest.mark.parametrize("place", ["interpreter", "hooks.conf", "hook", "folder"])
def test_a_program_that_a_user_could_have_changed_is_never_run(hooks: Path, place: str) -> None:
    proof = hooks.parent / "proof"
    trap = hooks.parent / "trap"
    trap.write_text(f"#!/bin/sh\nid -u >{proof}\n")
    trap.chmod(0o755)
    target = {"interpreter": trap, "hooks.conf": hooks / "hooks.conf", "hook": hooks / "prolog.sh"}
    with (hooks / "hooks.conf").open("a") as conf:
        conf.write(f"python={trap}\n")
    os.chown(target.get(place, hooks), USER, USER)
    # Twice the same fault: the second hook is no safer than the first.
    report = examine(asked(str(hooks / "prolog.sh"), str(hooks / "prolog.sh")))
    assert checks(report) == ["not-only-root"]
    assert not proof.exists()


@needs_root
@pytest.mark.parametrize("name", ["slurm_gpumem/config/node.py", "evil.pth"])
def test_a_package_that_a_user_could_have_changed_never_runs_as_root(hooks: Path, name: str) -> None:
    proof = hooks.parent / "proof"
    proof.mkdir(mode=0o777)
    proof.chmod(0o777)
    conf(f"python={install_package(hooks.parent / 'python')}")(hooks)
    file = hooks.parent / "python" / "packages" / name
    line = f"import os; open('{proof}/' + str(os.getuid()), 'w').close()\n"
    file.write_text(line + (file.read_text() if file.exists() and "future" not in file.read_text() else ""))
    os.chown(file, USER, USER)
    report = look(hooks, "prolog.sh")
    assert ("not-only-root", f"{file} belongs to user nobody") in report.faults
    assert "0" not in os.listdir(proof)


@needs_root
def test_looking_leaves_nothing_behind(hooks: Path) -> None:
    before = sorted(hooks.parent.rglob("*"))
    look(hooks, "prolog.sh", "epilog_slurmctld.sh")
    assert [path for path in sorted(hooks.parent.rglob("*")) if "__pycache__" not in str(path)] == before


@needs_root
def test_a_permanent_sampler_that_does_not_run_is_found(hooks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_node, "_UNIT", str(hooks / "hooks.conf"))
    found = examine(asked(str(hooks / "prolog.sh")))
    assert found.faults == (("no-sampler", "hooks.conf is enabled and no sampler runs"),)


def test_settings_are_read_and_not_run() -> None:
    text = "#python=/no\npython=/a/b run_dir='/r d'  # why\n[ -n \"$x\" ] && y=1\nnext_prolog=$(id)\n"
    assert parse_settings(text) == {"python": "/a/b", "run_dir": "/r d", "next_prolog": "$(id)"}


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("IDLE", True),
        ("MIXED+CLOUD", True),
        ("ALLOCATED", True),
        ("IDLE+DRAIN", False),
        ("DOWN*", False),
        ("IDLE*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("UNKNOWN", False),
    ],
)
def test_which_nodes_take_jobs(state: str, up: bool) -> None:
    assert takes_jobs(state) is up


@pytest.mark.parametrize(
    ("state", "wakes"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE~", True),
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", True),
        ("ALLOCATED#", True),
        ("IDLE+DRAIN+POWERED_DOWN", False),
        ("DOWN~", False),
    ],
)
def test_a_node_whose_power_is_off_takes_jobs(state: str, wakes: bool) -> None:
    assert takes_jobs(state) is wakes


def test_gres_conf_is_counted_as_slurm_counts_it() -> None:
    text = (
        "AutoDetect=off\nNodeName=n[1-2] Name=gpu Type=a100 \\\n File=/dev/nvidia[0-3]\n"
        "NodeName=n1 Name=shard Type=a100 Count=160 # all\nName=nic Count=2K\n"
    )
    gres = parse_gres_conf(text)
    assert [gres.units("n1", name) for name in ("gpu", "shard", "nic")] == [4, 160, 2048]
    assert (gres.units("n2", "shard"), gres.devices("n2")[-1]) == (None, "/dev/nvidia3")
    assert parse_gres_conf(text.replace("off", "nvml")).units("n1", "shard") is None


def _told(question: Question) -> str:
    report = examine(question)
    return "\n".join([*map(": ".join, report.faults), *report.unseen, "that is all"])


def _told_a_stranger(question: Question, place: Path) -> str:
    place.touch()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException), place.open("w") as told:
            become(STRANGER)
            told.write(_told(question))
        os._exit(0)
    os.waitpid(child, 0)
    return place.read_text()


@needs_root
def test_what_stands_between_a_hook_and_its_python_is_said_to_root_and_to_who_may_not_look(
    state_folder: Path,
) -> None:
    here, hooks = str(state_folder), []
    (state_folder / "closed").mkdir(mode=0o700)
    for name, mode, user, group in (
        ("closed/python", 0o755, 0, 0), ("private", 0o700, 0, 0), ("empty", 0o755, 0, 0),
        ("theirs", 0o755, STRANGER, 0), ("shared", 0o775, 0, STRANGER),
    ):  # fmt: skip
        (state_folder / name).write_bytes(b"\0")
        (state_folder / name).chmod(mode)
        os.chown(state_folder / name, user, group)
    for key, name, python, mode, readable, first in (
        ("Prolog", "1", "/etc/passwd", 0o755, 0o644, "#!/bin/sh"),
        ("Prolog", "2", "/no", 0o755, 0o644, "true"),
        ("Prolog", "3", f"{here}/empty", 0o755, 0o644, "#!/bin/sh"),
        ("Epilog", "4", "", 0o751, 0o644, "#!/none"),
        ("EpilogSlurmctld", "5", f"{here}/closed/python", 0o755, 0o644, "#!/bin/sh"),
        ("Epilog", "6", f"{here}/private", 0o755, 0o644, "#!/bin/sh"),
        ("Epilog", "7", "/bin/false", 0o755, 0o600, "#!/bin/sh"),
        ("Epilog", "8", "/bin/false", 0o755, 0o644, "#!/bin/sh"),
        ("Epilog", "closed/9", "", 0o755, 0o644, "#!/bin/sh"),
        ("TaskProlog", "closed/10", "", 0o755, 0o644, "#!/bin/sh"),
    ):
        folder = state_folder / name
        folder.mkdir()
        (folder / "hook").write_text(f"{first}\n# gpumem\n: -m slurm_gpumem.node\n")
        (folder / "hook").chmod(mode)
        (folder / "hooks.conf").write_text(f"python={python}\n")
        (folder / "hooks.conf").chmod(readable)
        hooks.append((key, f"{folder}/hook"))
    files = tuple(f"{here}/{name}" for name in ("theirs", "shared", "closed/python"))
    question = Question(tuple(hooks), files, (), (0,), (0,), SLURM_USER)
    for who, told in (
        ("root", _told(question)),
        ("a stranger", _told_a_stranger(question, state_folder / "told")),
    ):
        lines = enumerate(told.replace(here, "…").splitlines())
        shown = {f"to {who}, {number:02}": line for number, line in lines}
        assert_kept(Path(__file__).with_name("hooks.json"), shown)
