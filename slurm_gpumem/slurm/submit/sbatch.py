"""Call sbatch: become it, or run it and keep what it printed; its exit code and its own words stay."""

from __future__ import annotations

import os
import re
import sys
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient, missing
from slurm_gpumem.slurm.submit.sbatch_options import OptionSpec, options_from_help
from slurm_gpumem.slurm.submit.script import BatchScript

SBATCH, SRUN, SALLOC = "sbatch", "srun", "salloc"
_NUMBER = re.compile(r"^(?:Submitted batch job )?([0-9]+)(?:;|\s|$)")
"""What sbatch prints of a job that it submitted, with --parsable and without."""


class SbatchCall(NamedTuple):
    """One call of sbatch, or of srun or salloc, which take no script."""

    argv: Tuple[str, ...]
    """With the script's own path, even where a copy of it is handed over."""
    unset: Tuple[str, ...] = ()
    """Variables that sbatch must not see."""
    script: Optional[BatchScript] = None
    script_at: Optional[int] = None
    """The script's place in argv; None when sbatch reads it from standard input."""
    copied: bool = False
    """Whether `script` differs from the user's file (or cannot be read twice), and goes as a copy."""

    @property
    def environment(self) -> Dict[str, str]:
        """What sbatch runs with; the filter of plain sbatch sees who called it, and leaves the job to us."""
        kept = {name: value for name, value in os.environ.items() if name not in self.unset}
        return {**kept, "GPUMEM_SUBMITS": str(os.getpid())}

    def parsable(self) -> SbatchCall:
        """The same call, printing only the job's id and cluster."""
        return self._replace(
            argv=(self.argv[0], "--parsable", *self.argv[1:]),
            script_at=None if self.script_at is None else self.script_at + 1,
        )

    def shell_words(self) -> str:
        """The command as one could type it."""
        import shlex

        unset = [word for name in self.unset for word in ("-u", name)]
        return shlex.join(["env", *unset, *self.argv] if unset else self.argv)


class SbatchRefusedError(SlurmError):
    """sbatch did not take the job; the message has its own words."""


class SbatchOutput(NamedTuple):
    """What a finished sbatch left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def job_id(self) -> Optional[int]:
        """The job's id, of a parsable call; None when no job was submitted."""
        text = self.stdout.strip().partition(";")[0]
        return int(text) if text.isascii() and text.isdigit() else None

    @property
    def cluster(self) -> Optional[str]:
        """The cluster's name, where a parsable call prints one."""
        return self.stdout.strip().partition(";")[2] or None


def become_sbatch(call: SbatchCall) -> int:
    """Replace this process by sbatch; where a copy of the script must be removed afterwards, wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    argv, env = list(call.argv), call.environment
    if call.script is not None and call.script_at is None:
        _standard_input(call.script.data)
    if not call.copied or call.script_at is None:
        try:
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            raise missing(argv[0], error) from None
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder:
        argv[call.script_at] = _write_copy(call, folder)
        return _wait_for(argv, env)


def run_sbatch(call: SbatchCall, *, keep_stderr: bool) -> SbatchOutput:
    """Run sbatch and keep its stdout; its stderr goes where ours goes unless it is kept too."""
    import subprocess
    import tempfile

    sys.stderr.flush()
    argv, script = list(call.argv), call.script
    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder:
        if script is not None and call.copied and call.script_at is not None:
            argv[call.script_at] = _write_copy(call, folder)
        try:
            done = subprocess.run(
                argv,
                input=script.data if script is not None and call.script_at is None else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if keep_stderr else None,
                env=call.environment,
                check=False,
            )
        except OSError as error:
            raise missing(SBATCH, error) from None
    return SbatchOutput(
        done.returncode, done.stdout.decode(errors="replace"), (done.stderr or b"").decode(errors="replace")
    )


def submit_and_tell(call: SbatchCall, tell: Callable[[int], None]) -> int:
    """Run sbatch as the user wrote it, and tell the job's number as soon as there is one; its exit code.

    With --wait sbatch goes on until the job has ended.
    """
    import subprocess
    import tempfile

    sys.stdout.flush()
    sys.stderr.flush()
    argv, script = list(call.argv), call.script
    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder, tempfile.TemporaryFile() as text:
        if script is not None and call.copied and call.script_at is not None:
            argv[call.script_at] = _write_copy(call, folder)
        if script is not None and call.script_at is None:
            text.write(script.data)
            text.seek(0)
        try:
            child = subprocess.Popen(argv, stdin=text, stdout=subprocess.PIPE, env=call.environment)
        except OSError as error:
            raise missing(SBATCH, error) from None
        assert child.stdout is not None
        for line in child.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
            number = _NUMBER.search(line.decode(errors="replace"))
            if number:
                tell(int(number.group(1)))
        return child.wait()


def installed_options(client: SlurmClient = COMMANDS) -> Sequence[OptionSpec]:
    """Options that the installed sbatch lists, those of this site's plug-ins among them."""
    try:
        return options_from_help(client.run([SBATCH, "--help"]))
    except SlurmError:
        # Then an unknown option is handed on as it is, and sbatch judges it.
        return ()


def _write_copy(call: SbatchCall, folder: str) -> str:
    """The script as it is submitted, under its own name, which becomes the job's."""
    assert call.script is not None
    name = os.path.basename(call.script.path or "") or "job"
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(call.script.data)
    return path


def _standard_input(data: bytes) -> None:
    """Put the script, which we have read, back where sbatch will read it."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        os.dup2(file.fileno(), 0)


def _wait_for(argv: List[str], env: Mapping[str, str]) -> int:
    import signal

    # Ctrl-C reaches sbatch too: let it decide, and remove the copy after it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pid = os.posix_spawnp(SBATCH, argv, env, setsigdef=[signal.SIGINT])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except OSError as error:
        raise missing(SBATCH, error) from None
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
