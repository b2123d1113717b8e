"""A submission: a job's own settings, its options for sbatch, and the model or memory that they name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.load import Config, load_config
from slurm_gpumem.config.schema import JOB_KEYS, JOB_SWITCHES
from slurm_gpumem.errors import ConfigError, UsageError
from slurm_gpumem.slurm.submit.gpu_options import (
    GpuWish,
    Wishes,
    exported,
    gpu_wish,
    input_variables,
    merge_wishes,
    nodes_of,
    tasks_on_node,
)
from slurm_gpumem.slurm.submit.sbatch import SBATCH
from slurm_gpumem.slurm.submit.sbatch_options import CommandLine, OptionSpec, sbatch_table
from slurm_gpumem.slurm.submit.script import (
    BatchScript,
    Directives,
    check_script,
    read_directives,
)
from slurm_gpumem.submission.job.job_variables import job_environment
from slurm_gpumem.submission.job.settings import DIRECTIVES, OPTIONS, JobSettings, OwnOptions, job_settings

if TYPE_CHECKING:
    from slurm_gpumem.estimators.types import TrainingJob
    from slurm_gpumem.submission.job_trace.result import Trace
    from slurm_gpumem.summaries.types import ModelSummary

NOTHING_ASKED = "no model or amount of GPU memory is given"
HETEROGENEOUS = "a heterogeneous job keeps its GPUs as they are; nothing was estimated"


class RawInput(NamedTuple):
    """A job as it was handed over: the command line for sbatch, our options, its script."""

    line: CommandLine
    own: OwnOptions
    script: Optional[BatchScript]
    """None with --wrap."""
    more_options: Callable[[], Sequence[OptionSpec]] = tuple
    """Called once when an option is unknown."""
    program: str = SBATCH
    """The Slurm program that they are for; with srun, the script's place has the command's."""
    summary: Optional[ModelSummary] = None
    """A Python caller's own; then "model" among the options is its name."""
    plain: bool = False
    """Typed as plain sbatch, srun or salloc: the line holds every option in force, wherever it came from, and
    the site's mode says whether the job may share without asking."""


class Submission(NamedTuple):
    """What a job asks for."""

    raw: RawInput
    settings: JobSettings
    config: Config = Config()
    options: Wishes = Wishes({})
    """sbatch's options in force: command line, environment, script."""
    gpus: GpuWish = GpuWish()
    """What those say of GPUs."""
    warnings: Tuple[str, ...] = ()
    learns: bool = False
    """Whether nothing is said of its memory, so that what earlier runs of the script measured decides."""
    trace: bool = False
    """Whether its script is to be traced before anything is decided."""
    not_estimated: str = ""
    """Why its peak is not estimated, as a trace found; then it keeps whole GPUs."""
    traced: Optional[Trace] = None
    """Its traced script, in place of a model or a size."""
    goes_unchanged: str = ""
    """Why the job goes to sbatch as it is; empty when its share of a GPU is to be decided."""

    @property
    def script(self) -> Optional[BatchScript]:
        """The job's script."""
        return self.raw.script

    @property
    def script_text(self) -> str:
        """The text of the job's script; "" without one."""
        return self.script.text() if self.script else ""

    @property
    def text(self) -> str:
        """What it runs: the script's text, or --wrap's."""
        return self.script_text or self.options.get("wrap") or ""

    @property
    def commands(self) -> List[Tuple[str, str]]:
        """Lines that run something, and the script's arguments, with where they stand."""
        name = self.script.name if self.script else ""
        found = [
            (f"{name}, line {number}:", line)
            for number, line in enumerate(self.script_text.split("\n"), 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if self.raw.line.script_args:
            found.append(("the command line", " ".join(self.raw.line.script_args)))
        wrapped = self.options.get("wrap")
        return [*found, ("--wrap", wrapped)] if wrapped else found

    @property
    def nodes(self) -> int:
        """How many nodes it asks for; on each it has one share, or its own GPUs."""
        return nodes_of(self.options)

    @property
    def command(self) -> Tuple[str, ...]:
        """What srun is to run; empty for a batch job and for salloc without one."""
        line = self.raw.line
        return () if self.raw.program == SBATCH or line.script is None else (line.script, *line.script_args)

    @property
    def observed(self) -> bool:
        """Whether the site only records what it would ask for."""
        return self.config.sharing.mode == "observe"


class MeasuredRun(NamedTuple):
    """What was measured of a run of the job's script, besides the runs that are remembered."""

    gpu: str
    """The type of the GPU that it ran on."""
    peak_mib: int
    activity: Optional[int] = None
    """Percent of SM activity while it had the GPU to itself; None where that is not known."""


class Workload(NamedTuple):
    """What the GPU memory is for: a model and how it is trained, or a size given by hand."""

    summary: Optional[ModelSummary] = None
    job: Optional[TrainingJob] = None
    """Of the summary."""
    batch_from: str = ""
    """Where its batch size was found, when the job's commands name it; "" where it was stated or traced."""
    mem_mib: Optional[int] = None
    notes: Tuple[str, ...] = ()
    """What its owner should know of how it was understood."""
    script: str = ""
    """The key of a script of which nothing else is known (`script_key`) ..."""
    script_gpu: Optional[str] = None
    """... and the GPU that it runs on, where only one kind is in reach."""

    measured: Optional[MeasuredRun] = None
    """A run of that script, where it decides and not those that are remembered."""
    run_key: str = ""
    """The key of a script whose memory was given by hand: what its runs are remembered by."""

    @property
    def unfinished(self) -> str:
        """How much a trace saw that did not come to its script's end; "" where it did, or there is none."""
        return self.summary.trace.unfinished if self.summary and self.summary.trace else ""

    @property
    def fingerprint(self) -> Optional[str]:
        """The model's, or the script's where no model is known."""
        if self.script or self.run_key:
            return self.script or self.run_key
        return self.summary.fingerprint if self.summary else None


def read_submission(raw: RawInput) -> Submission:
    """Put together what a job asks for; UsageError when its parts do not make sense together."""
    script = raw.script
    directives = read_directives(script, JOB_KEYS, JOB_SWITCHES) if script else Directives((), ())
    by_environment = any(os.environ.get(name) for name in ("GPUMEM_MODEL", "GPUMEM_MEM", "GPUMEM_TRACE"))
    nothing_said = not (raw.own.values or directives.found or by_environment)
    try:
        config = load_config()
    except ConfigError as error:
        if not nothing_said:
            raise
        # A wrong file keeps nobody from sbatch.
        config = Config(warnings=(str(error),))
    in_script = script.options(sbatch_table(), raw.more_options) if script and not raw.plain else ()
    environ = {} if raw.plain else os.environ
    options = merge_wishes(raw.line.options, environ, in_script, input_variables(raw.program))
    config = _in_its_mode(config, options, plain=raw.plain)
    settings = JobSettings({}, spelled=raw.own.spelled)
    if not nothing_said or config.trace.default:
        # Otherwise nothing is for us, whatever a configuration file presets.
        settings = job_settings(
            config, directives.found, os.environ, raw.own, script=script.path if script else None
        )
    both = settings.contradiction()
    warnings = (*config.warnings, *directives.warnings, *((both,) if both else ()))
    asks = settings.asks_for_share
    by_default = config.trace.default and not settings.says_trace
    if not asks and not by_default and not nothing_said and not settings.slot_s:
        useless = _useless_settings(settings)
        warnings += () if directives.old_line else useless
    gpus = gpu_wish(options, script)
    several = raw.line.het_job or (script is not None and script.het_job)
    found = Submission(raw, settings, config, options, gpus, warnings)
    if not asks and not settings.slot_s and raw.plain and config.sharing.mode == "opt-in":
        return found._replace(goes_unchanged=NOTHING_ASKED)
    if not asks:
        runs = script is not None or options.any_of("wrap") or bool(found.command)
        if several or not runs or gpus.gpus != 1 or gpus.keep_whole or gpus.shared_gres:
            # There is no one GPU that it could share.
            return (
                found._replace(learns=True)
                if settings.slot_s
                else found._replace(goes_unchanged=NOTHING_ASKED)
            )
        if not by_default:
            return found._replace(learns=True)
    if script is not None:
        check_script(script)
    return _in_its_environment(found)._replace(
        trace=settings.trace or not asks, goes_unchanged=HETEROGENEOUS if several else ""
    )


def _in_its_mode(config: Config, options: Wishes, *, plain: bool) -> Config:
    """The configuration with the mode of the job's partitions, and what that lets happen unasked."""
    sharing, trace = config.sharing, config.trace
    if any("mode" in table for table in sharing.partitions.values()):
        from slurm_gpumem.slurm.state.nodes import partitions_of

        named, clusters = options.get("partition") or "", options.get("clusters")
        sharing = sharing._replace(mode=sharing.mode_in(partitions_of(named, clusters)))
    if plain and sharing.mode != "on":
        sharing, trace = sharing._replace(first_run_mib=None), trace._replace(default=False)
    return config._replace(sharing=sharing, trace=trace)


def _in_its_environment(asked: Submission) -> Submission:
    """With what the job's environment says: variables that are set for it, the PyTorch that it will use."""
    from slurm_gpumem.submission.job.job_torch import torch_of_job

    in_force = job_environment(os.environ, asked.script, asked.options)
    torch = torch_of_job(os.environ, asked.script, asked.options)
    in_force = in_force._replace(found={**({"torch": torch} if torch else {}), **in_force.found})
    return asked._replace(
        settings=asked.settings.under(in_force), warnings=(*asked.warnings, *in_force.remarks)
    )


def read_workload(asked: Submission) -> Workload:
    """What the memory is for; wrong names and values are errors before Slurm is asked anything."""
    settings = asked.settings
    if settings.gpu:
        from slurm_gpumem.estimators.gpus import find_gpu

        find_gpu(settings.gpu)
    settings.check()
    summary = asked.traced.summary if asked.traced else asked.raw.summary
    if settings.model is None and asked.traced is None:
        return Workload(mem_mib=settings.mem_mib, run_key=key_of_script(asked))
    from slurm_gpumem.estimators.resolve import resolve_job
    from slurm_gpumem.submission.job.script_batch import named_batches, the_batch
    from slurm_gpumem.summaries.reader import read_summary

    summary = summary or read_summary(settings.model or "")
    stated, batch_from = settings.stated_training(), ""
    # A trace has its own. Several GPUs may divide what the command names.
    if stated.batch_size is None and summary.trace is None and max(asked.gpus.total, asked.nodes) < 2:
        found = the_batch(asked.commands, asked.script_text)
        if found is not None:
            stated, batch_from = stated._replace(batch_size=found.size), found.where.rstrip(":")
    presets = settings.presets()
    if summary.trace is None and not (summary.batch or stated.batch_size or presets.batch_size):
        named = named_batches(asked.commands, asked.script_text)
        if named:
            each = ", ".join(f"{one.where.rstrip(':')} has {one.words}" for one in named)
            raise UsageError(
                f"the batch size of one GPU is not clear: the summary states none, and {each}.\n"
                "Give it with --batch-size 128 or #GPUMEM batch-size=128; in Python with batch_size=128."
            )
    resolved = resolve_job(
        summary,
        stated,
        presets=presets,
        input=settings.text("input"),
        gpus=max(asked.gpus.total, asked.nodes),
    )
    return Workload(resolved.summary, resolved.job, batch_from, notes=resolved.notes)


def key_of_script(asked: Submission, named: Optional[List[str]] = None) -> str:
    """What all runs of the job's script are known by; what files hold that it names is added to `named`."""
    from slurm_gpumem.submission.job.script_key import script_key

    return script_key(
        asked.text,
        asked.command or asked.raw.line.script_args,
        exported(asked.options.get("export"), os.environ),
        folder=asked.options.get("chdir") or "",
        ranks=tasks_on_node(asked.options),
        named=named,
    )


def why_never_same(asked: Submission) -> str:
    """Why earlier runs of the script say nothing of this one; "" where they do."""
    from slurm_gpumem.submission.job import script_key

    return script_key.why_never_same(asked.text, asked.command, pty=asked.options.any_of("pty"))


def _useless_settings(settings: JobSettings) -> Tuple[str, ...]:
    """Options about a model that is missing are an error, #GPUMEM lines a warning."""
    spelled = settings.spelled
    # A whole GPU may be wanted for a job of which nothing else is said.
    given = [key for key in settings.given_by(OPTIONS) if key not in ("trace", "slot", "exclusive-gpu")]
    if given:
        raise UsageError(
            f"{spelled(given[0])} says something about a model, but there is none.\n"
            f"Add {spelled('model')} summary.txt, {spelled('trace')} to have the script traced, or "
            f"{spelled('mem')} 12G to ask for GPU memory by hand."
        )
    if [key for key in settings.given_by(DIRECTIVES) if key != "exclusive-gpu"]:
        return ("#GPUMEM lines without model= or mem= ask for nothing; going as sbatch does",)
    return ()
