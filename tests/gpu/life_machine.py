"""The machine that the node's life is tried on: Slurm with our hooks, two users, jobs, logs."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

REPOSITORY = Path(__file__).resolve().parents[2]
USERS = ("nobody", "www-data", "games", "mail", "daemon")
"""Accounts that every Linux has; up to three of them play the users."""


class LifeError(Exception):
    """A step of the trial could not be done."""


def run(argv: Sequence[str], timeout_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command with a time limit; LifeError when it is missing or too slow."""
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            **options,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LifeError(f"{' '.join(map(str, argv))[:200]}: {error}") from None


def said(argv: Sequence[str]) -> str:
    """What a command prints; its failure is an answer too."""
    try:
        return run(argv, 20).stdout.strip()
    except LifeError as error:
        return str(error)


def until(condition: Any, timeout_s: float, every_s: float = 0.2) -> bool:
    """Poll; False when it did not come true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(every_s)
    return bool(condition())


class Machine:
    """Everything below one state folder, which any user can reach."""

    def __init__(self, state: Path, out: Path, up: Sequence[str], ledger: Optional[Path], mps: str) -> None:
        self.state, self.out, self.up_command, self.ledger, self.mps_control = state, out, up, ledger, mps
        self.work, self.run_dir, self.spool = state / "work", state / "run", state / "records"
        self.slurm = state / "slurm"
        self.venv_python = state / "venv" / "bin" / "python3"
        self.env: Dict[str, str] = dict(os.environ)
        accounts = [pwd.getpwnam(name) for name in USERS if _has_account(name)][:3]
        self.users = [(account.pw_name, account.pw_uid, account.pw_gid) for account in accounts]
        self.node = os.uname().nodename
        self.jobs: Dict[str, int] = {}
        self.said: Dict[str, str] = {}
        """What gpusbatch said when it submitted."""
        self._opened: List[Tuple[Path, int]] = []

    def prepare(self) -> None:
        """Folders, a copy of the package for users, an interpreter for root's hooks."""
        for folder in (self.state, self.work, self.out):
            folder.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o755)
        self.work.chmod(0o1777)
        ignore = shutil.ignore_patterns("__pycache__")
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        site = self.state / "venv" / "lib" / version / "site-packages"
        shutil.copytree(REPOSITORY / "slurm_gpumem", site / "slurm_gpumem", ignore=ignore, dirs_exist_ok=True)
        (self.state / "venv" / "bin").mkdir(exist_ok=True)
        interpreter = Path(os.path.realpath(sys.executable))
        if not self.venv_python.exists():
            self.venv_python.symlink_to(interpreter)
        (self.state / "venv" / "pyvenv.cfg").write_text(
            f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
            f"version = {sys.version.split()[0]}\n"
        )
        check = run(
            [str(self.venv_python), "-I", "-c", "import slurm_gpumem.node.hook as h; print(h.__file__)"], 20
        )
        if str(site) not in check.stdout:
            raise LifeError(f"the hooks' interpreter does not find the package: {check.stdout}{check.stderr}")
        shutil.copy(Path(__file__).with_name("life_worker.py"), self.work / "life_worker.py")
        hooks = self.state / "hooks"
        shutil.copytree(REPOSITORY / "prolog", hooks, dirs_exist_ok=True)
        (hooks / "hooks.conf").write_text(
            f"python={self.venv_python}\nsite_config={self.state}/gpumem.toml\nrun_dir={self.run_dir}\n"
        )
        self.package = site

    def open_to_users(self) -> Dict[str, Any]:
        """Users must be able to start the interpreter and load torch; open folders where they cannot."""
        code = "import sys" if self.ledger else "import torch; print(torch.__version__)"

        def works() -> subprocess.CompletedProcess[str]:
            return run(
                [
                    "setpriv",
                    f"--reuid={self.users[0][1]}",
                    f"--regid={self.users[0][2]}",
                    "--clear-groups",
                    "env",
                    f"HOME={self.work}",
                    sys.executable,
                    "-c",
                    code,
                ],
                90,
            )

        first = works()
        if first.returncode == 0:
            return {"ok": True, "opened": []}
        if self.ledger:
            raise LifeError(f"users cannot start {sys.executable}: rehearse with the system's python3")
        places = {Path(sys.executable), Path(os.path.realpath(sys.executable)), Path(sys.prefix)}
        for entry in filter(None, sys.path):
            places.add(Path(entry))
        for place in {parent for path in places for parent in (path, *path.parents)}:
            if place.is_dir() and place.stat().st_mode & 0o005 != 0o005:
                self._opened.append((place, place.stat().st_mode & 0o7777))
                place.chmod(place.stat().st_mode & 0o7777 | 0o055)
        again = works()
        return {
            "ok": again.returncode == 0,
            "opened": [str(path) for path, _ in self._opened],
            "before": first.stderr[-400:],
            "after": again.stderr[-400:],
        }

    def start(self, settings: Dict[str, Any], more: str = "") -> None:
        """Slurm, with our hooks and `more` lines in its configuration."""
        extra = self.state / "extra.conf"
        hooks = self.state / "hooks"
        extra.write_text(
            f"PrologFlags=Alloc\nProlog={hooks}/prolog.sh\nEpilog={hooks}/epilog.sh\n"
            f"TaskProlog={hooks}/task_prolog.sh\nTaskEpilog={hooks}/task_epilog.sh\nPrologEpilogTimeout=40\n"
            f"KillWait=3\n{more}"
        )
        # nproc, by which the node counts its processors, obeys OMP_NUM_THREADS.
        outside = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
        done = run(self.up_command, 60, env={**outside, "SLURM_EXTRA": str(extra)})
        (self.out / "up.txt").write_text(done.stdout + done.stderr)
        for word in done.stdout.split():
            key, equals, value = word.partition("=")
            if equals and key in ("SLURM_CONF", "LD_LIBRARY_PATH"):
                self.env[key] = value
        if done.returncode or "SLURM_CONF" not in self.env:
            raise LifeError(f"Slurm did not come up: {done.stderr[-600:]}")
        self.configure(settings)

    def configure(self, settings: Dict[str, Any]) -> None:
        """Write gpumem.toml; hooks read it at every job, a sampler when it starts."""
        if str(REPOSITORY) not in sys.path:
            sys.path.insert(0, str(REPOSITORY))
        from tests.support.site_toml import site_toml

        table: Dict[str, Any] = {
            "spool": str(self.spool),
            "slurm_bin": str(self._commands()),
            "mps_control": self.mps_control,
            "index": str(self.state / "index"),
            **settings,
        }
        if self.ledger:
            table["ledger"] = str(self.ledger)
        (self.state / "gpumem.toml").write_text(site_toml(table))

    def _commands(self) -> Path:
        """A folder with Slurm's commands for this cluster, in whatever environment they are called."""
        folder = self.state / "commands"
        folder.mkdir(exist_ok=True)
        known = [
            f"export {key}={self.env[key]}" for key in ("SLURM_CONF", "LD_LIBRARY_PATH") if key in self.env
        ]
        for name in ("squeue", "scontrol", "scancel", "sacct", "sacctmgr", "sinfo"):
            program = shutil.which(name, path=self.env.get("PATH"))
            if program:
                (folder / name).write_text("\n".join(["#!/bin/sh", *known, f'exec {program} "$@"', ""]))
                (folder / name).chmod(0o755)
        return folder

    def submit(
        self,
        name: str,
        user: int,
        part: str,
        shards: int,
        *,
        prelude: str = "",
        by: str = "sbatch",
        **options: Any,
    ) -> int:
        """A job of users[user] that plays `part`; its files are work/NAME.*."""
        _, uid, gid = self.users[user]
        out, script = self.work / name, self.work / f"{name}.sh"
        words = [f"--{key}={value}" for key, value in options.items()]
        if self.ledger:
            words.append(f"--standin={self.ledger}")
        script.write_text(
            "#!/bin/bash\nunset LD_LIBRARY_PATH\n"
            f"export HOME={self.work} PYTHONPATH={self.package} PYTHONDONTWRITEBYTECODE=1\n"
            f"{prelude}\n"
            f"exec {sys.executable} {self.work}/life_worker.py {part} --out={out} {' '.join(words)}\n"
        )
        usual = [
            "--parsable",
            f"--uid={uid}",
            f"--gid={gid}",
            f"--job-name={name}",
            f"--output={out}.out",
            f"--chdir={self.work}",
        ]
        done = None
        if by == "gpusbatch":
            code = "import sys; from slurm_gpumem.cli.gpusbatch import main; sys.exit(main())"
            command = [str(self.venv_python), "-I", "-c", code, f"--gpu-mem={shards}G", *usual, str(script)]
            done = run(command, 20, env={**self.env, "GPUMEM_SITE_CONFIG": f"{self.state}/gpumem.toml"})
            self.said[name] = (done.stdout + done.stderr)[-500:]
        if done is None or done.returncode:
            comment = f"--comment=life gpumem/1:est={shards * 1000},req={shards * 1024},by=life"
            command = ["sbatch", *usual, f"--gres=shard:{shards}", comment, str(script)]
            done = run(command, 15, env=self.env)
        if done.returncode or not done.stdout.strip().isdigit():
            raise LifeError(f"sbatch of {name}: {done.stderr[-300:]}")
        self.jobs[name] = int(done.stdout)
        return self.jobs[name]

    def ended(self, names: Sequence[str], timeout_s: float) -> bool:
        """Wait until these jobs have left Slurm's queue, epilog and all."""
        wanted = {str(self.jobs[name]) for name in names}

        def gone() -> bool:
            try:
                listed = run(["squeue", "-h", "-o", "%i"], 5, env=self.env)
            except LifeError:
                return False
            return listed.returncode == 0 and not wanted & set(listed.stdout.split())

        return until(gone, timeout_s, 0.3)

    def cancel(self, names: Sequence[str]) -> None:
        run(["scancel", *(str(self.jobs[name]) for name in names if name in self.jobs)], 10, env=self.env)

    def steps(self, name: str) -> List[List[float]]:
        """[start, seconds, loss] of each step so far."""
        try:
            lines = (self.work / f"{name}.steps").read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("]")]

    def trains(self, names: Sequence[str], steps: int, timeout_s: float) -> bool:
        """Wait until each of them has done this number of steps."""
        return until(lambda: all(len(self.steps(name)) >= steps for name in names), timeout_s)

    def result(self, name: str) -> Dict[str, Any]:
        """What the worker wrote when it ended; empty when it was killed."""
        return _json(self.work / f"{name}.json") or {}

    def record(self, name: str) -> Dict[str, Any]:
        """The job record in the spool."""
        return _json(self.spool / f"{self.jobs.get(name)}.0.{self.node}.json") or {}

    def live(self) -> Dict[str, Any]:
        return _json(self.run_dir / "live.json") or {}

    def sampler_pid(self) -> Optional[int]:
        return next(iter(pids_with("slurm_gpumem.node.sampler", str(self.venv_python))), None)

    def mps_pids(self) -> List[int]:
        return [pid for pid in pids_with("nvidia-cuda-mps") if str(self.state).encode() in _environ(pid)]

    def mps_logs(self) -> Dict[str, str]:
        """The end of what each MPS daemon and server wrote so far."""
        found = {}
        for path in self.run_dir.glob("mps/*/*/log/*.log"):
            try:
                found[f"{path.parts[-3]}-{path.name}"] = path.read_text(errors="replace")[-4000:]
            except OSError as error:
                found[f"{path.parts[-3]}-{path.name}"] = str(error)
        return found

    def collect(self) -> None:
        """Logs and records, for whoever has to find out what went wrong."""
        logs = self.out / "logs"
        logs.mkdir(exist_ok=True)
        for path in [
            *self.slurm.glob("log/*"),
            *self.state.glob("st/log/*"),
            self.run_dir / "log",
            self.state / "gpumem.toml",
        ]:
            _tail(path, logs / path.name)
        for path in [*self.work.glob("*.out"), *self.work.glob("*.json"), *self.spool.glob("*.json")]:
            _tail(path, logs / f"{path.parent.name}-{path.name}")
        for path in self.run_dir.glob("mps/*/*/log/*"):
            _tail(path, logs / f"mps-{path.parts[-3]}-{path.name}")

    def stop(self, down: Sequence[str]) -> None:
        """Leave the machine as it was."""
        pid = self.sampler_pid()
        if pid:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
        if down:
            run(down, 20)
        for path, mode in self._opened:
            path.chmod(mode)


def pids_with(*words: str) -> List[int]:
    """Processes whose command line holds all these words."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                line = (
                    Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(int(entry))
    return found


def cpu_s(pid: int) -> float:
    """Processor seconds it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def nvml_costs() -> Dict[str, float]:
    """Processor milliseconds of each NVML call that the sampler makes, on the first GPU."""
    from slurm_gpumem.node.nvml import Nvml, NvmlError

    costs: Dict[str, float] = {}
    try:
        nvml = Nvml()
        uuid = nvml.devices()[0][1]
        earlier, sample = nvml.gpm_sample(uuid), nvml.gpm_sample(uuid)
        calls = {
            **{
                name: lambda name=name: getattr(nvml, name)(uuid)
                for name in ("processes", "mps_processes", "memory_mib", "utilization", "power_w", "energy_j")
            },
            "gpm_sample": lambda: nvml.gpm_sample(uuid, sample),
            "gpm_metrics": lambda: earlier and sample and nvml.gpm_metrics(earlier, sample, {"sm_active": 2}),
            "xids": nvml.xids,
            "accounting_peaks": lambda: nvml.accounting_peaks(uuid),
        }
        for name, call in calls.items():
            began = time.process_time()
            for _ in range(50):
                call()
            costs[name] = round((time.process_time() - began) * 20, 3)
    except (OSError, NvmlError) as error:
        print(f"NVML's costs: {error}", flush=True)
    return costs


def rss_mib(pid: int) -> float:
    """Its resident memory."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return int(fields["VmRSS"].split()[0]) / 1024


def options(doc: Optional[str], state: str) -> argparse.ArgumentParser:
    """What every trial takes that can also be rehearsed without a GPU."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results and logs")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / state)
    parser.add_argument("--up", default=".carry/slurm-on-gpu/up .carry/debs {slurm}", help="starts Slurm")
    parser.add_argument("--down", default=".carry/slurm-on-gpu/down {slurm}")
    parser.add_argument("--mps-control", default="/usr/bin/nvidia-cuda-mps-control")
    parser.add_argument("--rehearse", action="store_true", help="on a dev cluster with a stand-in GPU")
    return parser


def machine_of(args: argparse.Namespace) -> Tuple[Machine, List[str]]:
    """The machine that these options describe, and the command that stops its Slurm."""
    if os.geteuid() != 0:
        raise SystemExit("run it as root: Slurm's daemons and users' jobs need that")
    slurm, ledger = args.state / "slurm", None
    shutil.rmtree(args.state, ignore_errors=True)
    if args.rehearse:
        ledger = slurm / "ledger"
        here = Path(__file__).resolve().parent
        args.up, args.down = (
            f"{sys.executable} {here}/rehearsal_cluster.py {what} {{slurm}}" for what in ("up", "down")
        )
        (args.state / "bin").mkdir(parents=True)
        standin = here.parent / "node" / "bin" / "nvidia-cuda-mps-control"
        args.mps_control = shutil.copy(standin, args.state / "bin")
    up, down = ([word.format(slurm=slurm) for word in shlex.split(text)] for text in (args.up, args.down))
    return Machine(args.state, args.out.resolve(), up, ledger, args.mps_control), down


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _tail(path: Path, target: Path, limit: int = 200_000) -> None:
    try:
        target.write_bytes(path.read_bytes()[-limit:])
    except OSError:
        pass


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
