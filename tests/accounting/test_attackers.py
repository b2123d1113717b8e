"""A user who wants other figures in the books than the nodes measured: the real commands on real files."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.accounting.job_records import record, write
from tests.support.no_slurm import without_slurm

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays users and root")

MALLORY = pwd.getpwnam("nobody")
ALICE = pwd.getpwnam("daemon")
_SOON_S = 60
"""More than a busy machine needs for a command; a hang is longer."""

_AS_USER = """
import contextlib, os, sys, tempfile
from slurm_gpumem.cli import gpumem
index, (uid, gid) = os.environ.get("GPUMEM_INDEX"), map(int, sys.argv[1:3])
with tempfile.TemporaryDirectory() as os.environ["GPUMEM_INDEX"], open(os.devnull, "w") as null:
    with contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        gpumem.main(sys.argv[3:])
del os.environ["GPUMEM_INDEX"]
os.environ.update({"GPUMEM_INDEX": index} if index else {})
os.setgroups([]), os.setgid(gid), os.setuid(uid)
sys.exit(gpumem.main(sys.argv[3:]))
"""
"""The command as a user, who may not be able to read the interpreter's folders: root loads all it needs."""


def gpu(number: int) -> str:
    """A GPU's UUID."""
    return f"GPU-{number:08}-0000-0000-0000-000000000000"


class Site:
    """A site with a record of Alice's, one of Mallory's and one of root's, its index and its store."""

    def __init__(self, root: Path) -> None:
        self.root, self.spool, self.store = root, root / "spool", root / "store"
        self.store.mkdir(mode=0o755)
        (root / "gpumem.toml").write_text(
            f'[node]\nspool = "{self.spool}"\n[accounting]\ndir = "{self.store}"\n'
            f'[devcluster]\nindex = "{root}/index"\n'
        )
        end = time.time() - 3 * 86_400
        users = {1: ALICE, 2: MALLORY, 3: pwd.getpwuid(0)}
        self.honest = {
            number: record(
                number, uid=user.pw_uid, user=user.pw_name, gpus=[gpu(90 + number)], start=end - 3600, end=end
            )
            for number, user in users.items()
        }
        for table in self.honest.values():
            write(self.spool, table).chmod(0o644)
        own = root / "own"
        own.mkdir()
        os.chown(own, MALLORY.pw_uid, MALLORY.pw_gid)
        self.forged = own / "forged.jsonl"

    def gpumem(self, *words: str, user: Any = None, **more: str) -> subprocess.CompletedProcess[str]:
        """The real command, as root or as a user; `more` of the environment."""
        own = str(self.root / ("own" if user else "roots"))
        env = {**os.environ, "GPUMEM_SITE_CONFIG": str(self.root / "gpumem.toml"), "HOME": own}
        env.update({"GPUMEM_INDEX": f"{own}/index"} if user else {})
        env["GPUMEM_REMEMBERED"] = f"{own}/remembered.json"
        env.update(more)
        how = ["-c", _AS_USER, str(user.pw_uid), str(user.pw_gid)] if user else ["-m", "slurm_gpumem"]
        argv = [sys.executable, *how, *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_SOON_S)

    def jobs(self, user: Any = None) -> Dict[int, Any]:
        """What a report says of each job; fails on two of one number."""
        done = self.gpumem("report", "--json", "--update", "-S", "now-30days", user=user)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["jobs"]
        found = {row["job_id"]: {key: row[key] for key in ("user", "peak_mib", "gpu_s")} for row in rows}
        assert len(found) == len(rows)
        return found

    def as_mallory(self, script: str) -> int:
        """Run a shell script as Mallory; the forged lines lie in $FORGED."""
        env = {
            "PATH": "/usr/bin:/bin",
            "STORE": str(self.store),
            "SPOOL": str(self.spool),
            "MINE": f"{self.store}/{MALLORY.pw_uid}",
            "FORGED": str(self.forged),
            "MONTH": time.strftime("%Y-%m"),
        }
        return subprocess.run(
            ["sh", "-c", script],
            env=env,
            user=MALLORY.pw_uid,
            group=MALLORY.pw_gid,
            extra_groups=[],
            timeout=_SOON_S,
            check=False,
        ).returncode


def forgeries() -> List[Dict[str, Any]]:
    """Alice's job taken over, a job of root's of 240 GPU-hours, another uid in the text, 600 small peaks."""
    now = time.time()
    long_ago = {"start": now - 10 * 86_400, "end": now}
    return [
        record(1, uid=MALLORY.pw_uid, user="daemon", peak_mib=1.0),
        record(1, uid=ALICE.pw_uid, user="daemon", peak_mib=1.0),
        record(4, uid=0, user="root", **long_ago),
        record(2, uid=MALLORY.pw_uid, user="root", peak_mib=1.0),
        *(record(1000 + n, uid=MALLORY.pw_uid, user=f"user{n}", peak_mib=900.0) for n in range(600)),
    ]


@pytest.fixture
def site(state_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    without_slurm(state_folder, monkeypatch)
    found = Site(state_folder)
    found.forged.write_text("".join(json.dumps(table) + "\n" for table in forgeries()))
    os.chown(found.forged, MALLORY.pw_uid, MALLORY.pw_gid)
    return found


PLANTED = {
    "a book": 'cp "$FORGED" "$PLACE/2020-01.jsonl"',
    "records": 'head -1 "$FORGED" > "$PLACE/1.0.n1.json"; sed -n 3p "$FORGED" > "$PLACE/4.0.n1.json"',
    "links": 'ln -s "$FORGED" "$PLACE/2020-02.jsonl"; ln -s "$FORGED" "$PLACE/4.0.n2.json"',
    "a hard link": 'ln "$FORGED" "$PLACE/2020-03.jsonl"',
    "pipes": 'mkfifo "$PLACE/2020-04.jsonl" "$PLACE/5.0.n1.json"',
    "huge files": 'truncate -s 1T "$PLACE/2020-05.jsonl" "$PLACE/6.0.n1.json"',
    "a torn line": 'head -c 700 "$FORGED" > "$PLACE/2020-06.jsonl"',
    "a folder": 'mkdir "$PLACE/0" && cp "$FORGED" "$PLACE/0/2020-07.jsonl"',
}
EVERYTHING = " && ".join(PLANTED.values())
THIS_MONTH = {
    "a book": 'cp "$FORGED" "$PLACE/$MONTH.jsonl"',
    "a pipe": 'mkfifo "$PLACE/$MONTH.jsonl"',
    "a link": 'ln -s "$FORGED" "$PLACE/$MONTH.jsonl"',
}


@pytest.mark.parametrize("place", ["$MINE", "$STORE", "$SPOOL", f"$STORE/{ALICE.pw_uid}"])
def test_a_user_can_put_nothing_into_the_books(site: Site, place: str) -> None:
    assert site.gpumem("collect").returncode == 0
    before = sorted(str(path) for path in site.root.rglob("*"))
    for script in (*PLANTED.values(), *THIS_MONTH.values()):
        assert site.as_mallory(f'PLACE="{place}"; {script}') != 0
    assert site.as_mallory(f'mv "{place}" "{place}.away" || rm -r "{place}" || chmod 777 "{place}"') != 0
    assert sorted(str(path) for path in site.root.rglob("*")) == before


@pytest.mark.parametrize("book", ["nothing", *THIS_MONTH])
def test_what_a_user_planted_in_a_folder_of_their_own_never_counts(site: Site, book: str) -> None:
    site.gpumem("collect", "--index-only")
    honest, own = site.jobs(), site.jobs(MALLORY)
    assert (sorted(honest), sorted(own)) == ([1, 2, 3], [2])
    assert own[2] == honest[2]
    # As an older collector left it: the folder is the user's.
    mine = site.store / str(MALLORY.pw_uid)
    mine.mkdir()
    os.chown(mine, MALLORY.pw_uid, MALLORY.pw_gid)
    assert site.as_mallory(f'PLACE="$MINE"; {EVERYTHING} && {THIS_MONTH.get(book, "true")}') == 0
    assert site.jobs() == honest
    done = site.gpumem("collect")
    # The others' records are moved whatever Mallory did; the folder is root's again.
    assert not any(site.spool.glob("[13].*"))
    assert (mine.stat().st_uid, mine.stat().st_mode & 0o022) == (0, 0)
    if book == "nothing":
        assert done.returncode == 0
    else:
        assert (done.returncode, any(site.spool.glob("2.*"))) == (1, True)
        assert f"{mine}/{time.strftime('%Y-%m')}.jsonl: " in done.stderr
    assert site.jobs() == honest
    for index in (site.root / "index", site.root / "own" / "index"):
        (index / "index.sqlite").unlink()
    assert site.jobs() == honest
    assert site.jobs(MALLORY) == own
    assert site.forged.stat().st_uid == MALLORY.pw_uid


@pytest.mark.parametrize("folder", ["store", "spool"])
def test_nothing_is_read_from_a_folder_that_everybody_may_write_to(site: Site, folder: str) -> None:
    site.gpumem("collect", "--index-only")
    honest = site.jobs()
    (site.root / folder).chmod(0o1777)
    assert site.as_mallory(f'PLACE="${folder.upper()}"; {EVERYTHING.replace("1.0.n1", "1.0.n3")}') == 0
    done = site.gpumem("collect")
    assert done.returncode == 2
    assert f"{site.root / folder}: a folder that others may write to" in done.stderr
    assert "chmod go-w" in done.stderr
    assert "Traceback" not in done.stderr
    assert site.jobs() == honest
    (site.root / "index" / "index.sqlite").unlink()
    assert site.jobs() == (honest if folder == "store" else {})
    told = site.gpumem("report", "-v").stderr
    assert f"{site.root / folder}: folder that others may write to" in told
    # Closed again, it counts again, without what was planted.
    (site.root / folder).chmod(0o755)
    assert site.jobs() == honest
    assert site.jobs(MALLORY) == {2: honest[2]}


def test_a_hard_link_in_a_books_place_lets_its_user_read_nothing(site: Site) -> None:
    """Where the kernel does not protect hard links: root would let Mallory read the file behind it."""
    secret = site.root / "secret"
    secret.write_text("root's\n")
    secret.chmod(0o600)
    mine = site.store / str(MALLORY.pw_uid)
    mine.mkdir()
    os.link(secret, mine / f"{time.strftime('%Y-%m')}.jsonl")
    done = site.gpumem("collect")
    assert (done.returncode, secret.read_text()) == (1, "root's\n")
    assert "has another name (a hard link)" in done.stderr
    assert site.as_mallory(f'cat "{secret}"') != 0
    assert any(site.spool.glob("2.*"))


def test_a_link_in_the_place_of_a_users_folder_is_not_followed(site: Site) -> None:
    elsewhere = site.root / "elsewhere"
    elsewhere.mkdir()
    (site.store / str(MALLORY.pw_uid)).symlink_to(elsewhere)
    done = site.gpumem("collect")
    assert done.returncode == 1
    assert str(site.store / str(MALLORY.pw_uid)) in done.stderr
    assert not list(elsewhere.iterdir())
    assert elsewhere.stat().st_uid == 0


def test_one_number_given_to_jobs_of_two_users_is_two_jobs(site: Site) -> None:
    """A cluster whose state was lost counts from 1 again."""
    assert site.gpumem("collect").returncode == 0
    end = time.time() - 86_400
    later = {"start": end - 7200, "end": end, "peak_mib": 2_000.0}
    write(site.spool, record(1, uid=MALLORY.pw_uid, user="nobody", **later)).chmod(0o644)
    write(site.spool, record(1, uid=MALLORY.pw_uid, user="nobody", restarts=1, **later)).chmod(0o644)
    rows = json.loads(site.gpumem("report", "--json", "--update", "-j", "1").stdout)["jobs"]
    assert [(row["user"], row["attempts"], row["peak_mib"], row["gpu_s"]) for row in rows] == [
        ("daemon", 1, 11_600, 3600.0),
        ("nobody", 2, 2_000, 14_400.0),
    ]
    assert [len(row["runs"]) for row in rows] == [1, 2]
    assert site.jobs(MALLORY)[1] == {"user": "nobody", "peak_mib": 2_000, "gpu_s": 14_400.0}


def test_a_folder_that_somebody_took_first_is_not_used_for_anothers_index(site: Site) -> None:
    # A number that nobody else has, and no other test.
    uid = 1_500_000_000 + os.getpid()
    victim = pwd.struct_passwd(("", "", uid, uid, "", "", ""))
    home, squatted = site.root / "home", Path(f"/var/tmp/gpumem-{uid}")
    home.mkdir()
    os.chown(home, uid, uid)
    write(site.spool, {**site.honest[2], "job_id": 7, "uid": uid}).chmod(0o644)
    where = {"HOME": str(home), "GPUMEM_INDEX": "", "XDG_CACHE_HOME": ""}
    assert site.as_mallory(f"mkdir -m 777 {squatted} && mkfifo {squatted}/index.sqlite") == 0
    try:
        done = site.gpumem("report", "-n", "-o", "jobid", "-S", "now-30days", user=victim, **where)
        assert (done.returncode, done.stdout.split()) == (0, ["7"]), done.stderr
        assert (home / ".cache" / "gpumem" / "index.sqlite").stat().st_uid == uid
    finally:
        shutil.rmtree(squatted)


def test_root_writes_no_page_through_a_users_link(site: Site) -> None:
    pytest.importorskip("jinja2")
    everybodys, precious = site.root / "tmp", site.root / "precious"
    precious.write_text("kept")
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    assert site.as_mallory(f'ln -s "{precious}" "{everybodys}/page.html"') == 0
    done = site.gpumem("report", "--html", f"{everybodys}/page.html")
    assert (done.returncode, precious.read_text()) == (2, "kept")
    assert f"page.html is a link of user {MALLORY.pw_uid}; it may be a trap" in done.stderr


def test_a_users_own_report_agrees_with_roots_on_every_figure(site: Site) -> None:
    """Jobs alone, beside one's own, beside another's, requeued after an error, and still running."""
    own, other = {"uid": MALLORY.pw_uid, "user": "nobody"}, {"uid": ALICE.pw_uid, "user": "daemon"}
    day = time.time() - 5 * 86_400

    def put(number: int, device: int, **changes: Any) -> None:
        table = record(number, **{"gpus": [gpu(device)], "start": day, "end": day + 3600, **changes})
        write(site.spool, table).chmod(0o644)

    put(11, 1, **own)
    put(12, 2, **own, met=[13])
    put(13, 2, **own, met=[12], start=day + 1800)
    put(14, 3, **own, met=[15])
    put(15, 3, **other, met=[14])
    put(16, 4, **own, end=day + 60, exit_code=1, state="FAILED", verdict="oom")
    put(16, 4, **own, restarts=1, start=day + 100, claim={"why": "oom"}, met=[15])
    put(17, 5, **own, start=time.time() - 60, end=None, state=None, exit_code=None)

    def rows(user: Any) -> List[Dict[str, Any]]:
        words = ("report", "--json", "--update", "-u", "nobody", "-S", "now-30days")
        found: List[Dict[str, Any]] = json.loads(site.gpumem(*words, user=user).stdout)["jobs"]
        return sorted(found, key=lambda row: row["job_id"])

    roots, mine = rows(None), rows(MALLORY)
    assert [row["job_id"] for row in mine] == [row["job_id"] for row in roots] == [2, *range(11, 15), 16, 17]
    for whole, seen in zip(roots, mine):
        differing = {key for key in whole if whole[key] != seen[key]}
        # What the GPU's time while sharing comes to needs their records: not known, never wrong.
        beside = whole["job_id"] in (14, 16)
        assert differing == ({"used_s"} if beside else set()), whole["job_id"]
        assert seen["used_s"] is None or not beside
    assert [row["used_s"] for row in mine[1:4]] == [3600.0, 2700.0, 900.0]
    total = site.gpumem("report", "--summary", "-S", "now-30days", user=MALLORY).stdout
    assert "if exclusive; 2 runs beside other users' jobs: only root's report has their part" in total
    # Bit by bit as at once.
    (site.root / "own" / "index" / "index.sqlite").unlink()
    assert rows(MALLORY) == mine
