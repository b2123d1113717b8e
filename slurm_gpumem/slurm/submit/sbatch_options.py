"""sbatch's options and how each takes its value, and a reader of command lines by getopt's rules.

The table lets our options be told from sbatch's, and both from values that only look like
options (`-J --model` is a job named "--model"). Options that a site's SPANK plugins add are
not in it; `options_from_help` reads those from `sbatch --help` when an unknown one turns up.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

NO_VALUE, REQUIRED, OPTIONAL = "no value", "required", "optional"

# Names as `name` or `name:short`; what newer versions added stands here too: an old sbatch
# refuses it in its own words. tests/slurm holds the table against the installed sbatch.
_REQUIRED = """
    account:A acctg-freq array:a autocomplete batch bb bbf begin:b chdir:D cluster
    cluster-constraint clusters:M comment constraint:C container container-id container-type
    core-spec:S cores-per-socket cpu-freq cpus-per-gpu cpus-per-task:c deadline delay-boot
    dependency:d distribution:m error:e exclude:x export export-file extra extra-node-info:B gid
    gpu-bind gpu-freq gpus:G gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
    input:i job-name:J kill-on-invalid-dep licenses:L mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus network nodefile:F nodelist:w nodes:N ntasks:n ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output:o partition:p
    power prefer priority profile qos:q reservation segment signal sockets-per-node switches
    tasks-per-node thread-spec threads-per-core time:t time-min tmp tres-bind tres-per-task uid
    wait-all-nodes wckey wrap
"""
_OPTIONAL = "exclusive get-user-env nice no-kill:k oom-kill-step propagate requeue resv-ports"
_NO_VALUE = """
    consolidate-segments contiguous external help:h hold:H ignore-pbs no-requeue overcommit:O
    oversubscribe:s parsable quiet:Q reboot spread-job spread-segments stepmgr test-only
    usage use-min-nodes verbose:v version:V wait:W
"""
_SAME_AS = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}
_OF_SRUN = (
    (
        REQUIRED,
        """accel-bind bcast bcast-exclude cpu-bind epilog het-group ignore-signals jobid mpi msg-timeout
        pack-group prolog relative:r slurmd-debug task-epilog task-prolog threads:T treewidth wait:W""",
    ),
    (OPTIONAL, "compress immediate:I kill-on-bad-exit:K pty send-libs x11"),
    (
        NO_VALUE,
        """async disable-status:X exact external-launcher interactive label:l multi-prog no-allocate:Z overlap
        preserve-env:E quit-on-interrupt unbuffered:u wait-for-children whole""",
    ),
)
_OF_SBATCH = ((REQUIRED, _REQUIRED), (OPTIONAL, _OPTIONAL), (NO_VALUE, _NO_VALUE))
"""Most are srun's and salloc's, too; what those take otherwise stands in their own lists."""
_OF_SALLOC = ((OPTIONAL, "immediate:I kill-command:K x11"), (NO_VALUE, "bell no-bell no-shell"))


class OptionSpec(NamedTuple):
    """One option a command understands."""

    name: str
    short: str
    kind: str
    ours: bool = False


class Option(NamedTuple):
    """One option as it stood on a command line or in a script."""

    name: str
    """Its full name, whatever abbreviation was used; an unknown one as written."""
    value: Optional[str]
    words: Tuple[str, ...]
    """The words as they stood (an option of a bundle like -Hn4 gets a word of its own)."""
    ours: bool = False
    at: int = 0
    """Index of its first word."""


class CommandLine(NamedTuple):
    """A command line taken apart."""

    options: Tuple[Option, ...]
    script: Optional[str]
    script_args: Tuple[str, ...]
    het_job: bool
    """A ":" between options (kept among them): several components."""
    script_at: Optional[int] = None
    """Index of the script's word."""
    missing_value: Optional[str] = None
    """The option that ended the line without the value it needs."""
    argv: Tuple[str, ...] = ()
    """All words as they stood."""


class OptionTable:
    """Options by name, unique abbreviation and letter."""

    def __init__(self, specs: Sequence[OptionSpec]) -> None:
        self._long: Dict[str, OptionSpec] = {spec.name: spec for spec in specs}
        self._short: Dict[str, OptionSpec] = {spec.short: spec for spec in specs if spec.short}

    def specs(self) -> List[OptionSpec]:
        """Every option."""
        return list(self._long.values())

    def with_more(self, specs: Sequence[OptionSpec]) -> OptionTable:
        """A table with further options; those already known stay as they are."""
        return OptionTable([*(spec for spec in specs if spec.name not in self._long), *self._long.values()])

    def long(self, name: str) -> Optional[OptionSpec]:
        """The option that `--name` means; None when it is unknown or ambiguous.

        A name that abbreviates one of sbatch's options keeps that meaning even where one
        of ours begins the same way, so that command lines that work with sbatch go on working.
        """
        if name in self._long:
            return self._long[name]
        matches = [spec for known, spec in self._long.items() if known.startswith(name)]
        for ours in (False, True):
            found = {_SAME_AS.get(spec.name, spec.name) for spec in matches if spec.ours is ours}
            if found:
                return self._long[found.pop()] if len(found) == 1 else None
        return None

    def short(self, letter: str) -> Optional[OptionSpec]:
        """The option that `-letter` means."""
        return self._short.get(letter)


def sbatch_table(ours: Sequence[OptionSpec] = ()) -> OptionTable:
    """sbatch's options and ours."""
    return OptionTable([*_specs(_OF_SBATCH), *ours])


def srun_table(ours: Sequence[OptionSpec] = ()) -> OptionTable:
    """srun's options and ours."""
    return OptionTable([*_specs(_OF_SBATCH), *_specs(_OF_SRUN), *ours])


def salloc_table(ours: Sequence[OptionSpec] = ()) -> OptionTable:
    """salloc's options and ours."""
    return OptionTable([*_specs(_OF_SBATCH), *_specs(_OF_SALLOC), *ours])


def _specs(kinds: Sequence[Tuple[str, str]]) -> List[OptionSpec]:
    return [
        OptionSpec(name, short, kind)
        for kind, text in kinds
        for name, _, short in (word.partition(":") for word in text.split())
    ]


def options_from_help(text: str) -> List[OptionSpec]:
    """Options that `sbatch --help` names, its plugins' among them: "  -x, --name=value  what it does"."""
    specs = []
    for line in text.splitlines():
        word = next((word for word in line.split()[:2] if word.startswith("--")), "")
        name, bracket, _ = word[2:].partition("[=")
        kind = OPTIONAL if bracket else NO_VALUE
        if not bracket and "=" in name:
            name, kind = name.partition("=")[0], REQUIRED
        if name and line[:1].isspace():
            specs.append(OptionSpec(name, "", kind))
    return specs


def read_options(
    words: Sequence[str],
    table: OptionTable,
    *,
    ask_more: Callable[[], Sequence[OptionSpec]] = tuple,
) -> Tuple[Option, ...]:
    """The options among the words of a script's #SBATCH lines; stray words are passed over."""
    return _Reader(words, table, ask_more).read_all()


def read_command_line(
    argv: Sequence[str],
    table: OptionTable,
    *,
    ask_more: Callable[[], Sequence[OptionSpec]] = tuple,
) -> CommandLine:
    """Take a command line apart: options, the script, the script's own arguments.

    Options are read before the script and after it, up to the first word that is no option
    we or sbatch know; from there on everything is the script's. `--` ends the options.
    `ask_more` is called once when an option is unknown.
    """
    return _Reader(argv, table, ask_more).read()


class _Reader:
    """The walk over the words; one use."""

    def __init__(
        self, argv: Sequence[str], table: OptionTable, ask_more: Callable[[], Sequence[OptionSpec]]
    ) -> None:
        self.argv = argv
        self.table = table
        self.ask_more: Optional[Callable[[], Sequence[OptionSpec]]] = ask_more
        self.at = 0
        self.options: List[Option] = []
        self.script: Optional[str] = None
        self.script_at: Optional[int] = None
        self.het_job = False
        self.missing_value: Optional[str] = None

    def read(self) -> CommandLine:
        while self.at < len(self.argv):
            word = self.argv[self.at]
            if word == "--":
                self.at += 1
                if self.script is None and self.at < len(self.argv):
                    self._take_script()
                break
            if word == ":" and self.script is None:
                self.het_job = True
                self.options.append(Option(":", None, (":",), at=self.at))
                self.at += 1
            elif word.startswith("-") and word != "-":
                if not self._option(word):
                    break
            elif self.script is None:
                self._take_script()
            else:
                break
        return CommandLine(
            options=tuple(self.options),
            script=self.script,
            script_args=tuple(self.argv[self.at :]),
            het_job=self.het_job,
            script_at=self.script_at,
            missing_value=self.missing_value,
            argv=tuple(self.argv),
        )

    def read_all(self) -> Tuple[Option, ...]:
        while self.at < len(self.argv):
            word = self.argv[self.at]
            if word in ("-", "--") or not word.startswith("-") or not self._option(word):
                self.at += 1
        return tuple(self.options)

    def _take_script(self) -> None:
        self.script, self.script_at = self.argv[self.at], self.at
        self.at += 1

    def _option(self, word: str) -> bool:
        return self._long_option(word) if word.startswith("--") else self._short_options(word)

    def _long_option(self, word: str) -> bool:
        name, equals, value = word[2:].partition("=")
        spec = self._find(name)
        if spec is None:
            return self._unknown(name, word)
        start = self.at
        self.at += 1
        given: Optional[str] = value if equals else None
        if spec.kind == REQUIRED and not equals:
            given = self._next_word(spec.name)
        self._add(spec, given, tuple(self.argv[start : self.at]), start)
        return True

    def _short_options(self, word: str) -> bool:
        specs = []
        for place, letter in enumerate(word[1:], start=1):
            spec = self.table.short(letter)
            if spec is None:
                return self._unknown(word, word)
            specs.append((spec, word[place + 1 :]))
            if spec.kind != NO_VALUE:
                break
        start = self.at
        self.at += 1
        for spec, rest in specs:
            if spec.kind == NO_VALUE:
                self._add(spec, None, (f"-{spec.short}",), start)
            elif rest or spec.kind == OPTIONAL:
                self._add(spec, rest or None, (f"-{spec.short}{rest}",), start)
            else:
                value = self._next_word(spec.name)
                words = (f"-{spec.short}",) if value is None else (f"-{spec.short}", value)
                self._add(spec, value, words, start)
        return True

    def _find(self, name: str) -> Optional[OptionSpec]:
        spec = self.table.long(name)
        if spec is None and self.ask_more is not None and name:
            self.table = self.table.with_more(self.ask_more())
            self.ask_more = None
            spec = self.table.long(name)
        return spec

    def _next_word(self, name: str) -> Optional[str]:
        # An option that needs a value takes the next word whatever it looks like, as getopt does.
        if self.at >= len(self.argv):
            self.missing_value = name
            return None
        self.at += 1
        return self.argv[self.at - 1]

    def _add(self, spec: OptionSpec, value: Optional[str], words: Tuple[str, ...], start: int) -> None:
        name = _SAME_AS.get(spec.name, spec.name)
        self.options.append(Option(name, value, words, spec.ours, start))

    def _unknown(self, name: str, word: str) -> bool:
        """Before the script it is sbatch's to refuse; after it, it is the script's."""
        if self.script is not None:
            return False
        self.options.append(Option(name, None, (word,), at=self.at))
        self.at += 1
        return True
