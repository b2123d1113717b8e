"""What a job states about itself: files, #GPUMEM lines, GPUMEM_* variables, options; later wins."""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.kinds import COVERAGE, SLOWDOWN, Kind
from slurm_gpumem.config.load import Config, job_variables
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.slurm.submit.script import Directive
from slurm_gpumem.units import parse_mib, parse_seconds

if TYPE_CHECKING:
    # Without a model none of these is needed, and gpusbatch starts sooner.
    from slurm_gpumem.estimators.training_job import StatedTraining
    from slurm_gpumem.submission.job.job_variables import Variables

ON_OOM = ("requeue", "fail")
TRACE_OR = ("stop", "whole-gpu")
_YES = {
    "yes": True,
    "true": True,
    "on": True,
    "1": True,
    "no": False,
    "false": False,
    "off": False,
    "0": False,
}


FILES, DIRECTIVES, ENVIRONMENT, OPTIONS = range(4)


def option_name(key: str) -> str:
    """A key as gpusbatch's option."""
    return "--gpu-mem" if key == "mem" else f"--{key}"


ANY_GPU = "any"
"""The value of --gpu that stands for every type in reach."""


class Setting(NamedTuple):
    """A value, where it was given, and how late in the order of precedence."""

    value: str
    origin: str
    layer: int


class OwnOptions(NamedTuple):
    """The last layer: what was given on the command line or by a Python caller, by key of JOB_KEYS."""

    values: Mapping[str, str] = MappingProxyType({})
    spelled: Callable[[str], str] = option_name
    """A key as its user writes it, for messages."""


class JobSettings:
    """The values in force, read with the type each must have; errors name where a value was given."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        script_folder: Optional[str] = None,
        spelled: Callable[[str], str] = option_name,
    ) -> None:
        self._settings = settings
        self._script_folder = script_folder
        self.spelled = spelled
        """A key as an option of the command or of the Python API."""

    @property
    def model(self) -> Optional[str]:
        """The summary's path; None when no estimate is asked for (or a later layer gives mem)."""
        model, mem = self._settings.get("model"), self._settings.get("mem")
        if model is None or (mem is not None and mem.layer >= model.layer):
            return None
        return self._path(model)

    @property
    def mem_mib(self) -> Optional[int]:
        """GPU memory given by hand."""
        mem, model = self._settings.get("mem"), self._settings.get("model")
        if mem is None or (model is not None and model.layer > mem.layer):
            return None
        try:
            mib = parse_mib(mem.value)
        except UsageError as error:
            raise UsageError(f"{mem.origin}: {error}") from None
        if mib < 1:
            raise UsageError(f"{mem.origin}: GPU memory must be more than nothing, not {mem.value!r}")
        return mib

    @property
    def asks_for_share(self) -> bool:
        """Whether anything here asks for part of a GPU, or for one that nobody shares."""
        return bool(self.trace or self.model or self.mem_mib or self.exclusive_gpu)

    @property
    def trace(self) -> bool:
        """Whether its script is to be traced first; a model or `mem` of a later layer makes that needless."""
        if not self._switch("trace"):
            return False
        setting = self._settings["trace"]
        for other in (self._settings.get("model"), self._settings.get("mem")):
            if other is not None and other.layer == setting.layer:
                raise UsageError(
                    f"{setting.origin} and {other.origin} both say what the job needs: choose one of them"
                )
            if other is not None and other.layer > setting.layer:
                return False
        return True

    @property
    def says_trace(self) -> bool:
        """Whether anything says if the script is to be traced."""
        return "trace" in self._settings

    @property
    def trace_or(self) -> str:
        """What to do where the script cannot be traced: "stop" or "whole-gpu"."""
        setting = self._settings.get("trace-or")
        if setting is None:
            return TRACE_OR[0]
        if setting.value not in TRACE_OR:
            raise UnknownNameError(f"trace-or ({setting.origin})", setting.value, list(TRACE_OR))
        return setting.value

    @property
    def trace_limit_s(self) -> Optional[int]:
        """How long one trace may take, where the job says."""
        return self._number("trace-limit")

    @property
    def gpu(self) -> Optional[str]:
        """The GPU type to estimate for; None where none is named."""
        return None if self.any_gpu else self.text("gpu")

    @property
    def any_gpu(self) -> bool:
        """Whether the job takes every type of GPU in reach that holds it."""
        return (self.text("gpu") or "").lower() == ANY_GPU

    @property
    def on_oom(self) -> str:
        """Whether the job may be requeued when it runs out of GPU memory."""
        setting = self._settings.get("on-oom")
        if setting is None:
            return "requeue"
        if setting.value not in ON_OOM:
            raise UnknownNameError(f"on-oom ({setting.origin})", setting.value, list(ON_OOM))
        return setting.value

    @property
    def slot_s(self) -> Optional[int]:
        """Seconds of one time slot; 0: none, whatever the site's default is; None where it does not say."""
        setting = self._settings.get("slot")
        if setting is None or setting.value == "off":
            return None if setting is None else 0
        try:
            return parse_seconds(setting.value)
        except UsageError as error:
            raise UsageError(f"{setting.origin}: {error}") from None

    @property
    def max_slowdown(self) -> Optional[float]:
        """How much longer its steps may take while sharing, where the job states it."""
        return self._of_kind("max-slowdown", SLOWDOWN)

    @property
    def coverage(self) -> Optional[float]:
        """Which share of jobs like it the request is to hold for, where the job states it."""
        return self._of_kind("coverage", COVERAGE)

    def _of_kind(self, key: str, kind: Kind) -> Optional[float]:
        setting = self._settings.get(key)
        if setting is None:
            return None
        try:
            number: float = kind.checked(setting.value)
        except ValueError as error:
            raise UsageError(f"{key} ({setting.origin}) {error}") from None
        return number

    @property
    def exclusive_gpu(self) -> bool:
        """Whether the job wants a GPU to itself."""
        return self._switch("exclusive-gpu") or False

    def check(self) -> None:
        """Read what is otherwise read late, so that a wrong value is an error before Slurm is asked."""
        _ = (self.on_oom, self.max_slowdown, self.coverage, self.exclusive_gpu)

    def text(self, key: str) -> Optional[str]:
        """A value as it was given."""
        setting = self._settings.get(key)
        return None if setting is None else setting.value

    def under(self, variables: Variables) -> JobSettings:
        """With what the job's own variables say; what is stated about the job counts before that."""
        merged = dict(self._settings)
        for key, (value, where) in variables.found.items():
            if self._layer(key) == FILES:
                merged[key] = Setting(value, where, ENVIRONMENT)
        return JobSettings(merged, self._script_folder, self.spelled)

    def without(self, key: str) -> JobSettings:
        """Without a value that was used already."""
        left = {name: setting for name, setting in self._settings.items() if name != key}
        return JobSettings(left, self._script_folder, self.spelled)

    def on_whole_gpu(self) -> JobSettings:
        """Of a job that could not be traced: it gets a whole GPU, as trace-or asks."""
        asked_by = self.spelled("trace-or")
        whole = {**self._settings, "exclusive-gpu": Setting("yes", asked_by, OPTIONS)}
        spelled = self.spelled
        return JobSettings(
            whole, self._script_folder, lambda key: asked_by if key == "exclusive-gpu" else spelled(key)
        )

    def given_by(self, layer: int) -> List[str]:
        """Keys whose value in force stands in this layer."""
        return [key for key, setting in self._settings.items() if setting.layer == layer]

    def stated_training(self) -> StatedTraining:
        """What is stated about this job's training; None for each value that is not."""
        stated = {key: setting for key, setting in self._settings.items() if setting.layer > FILES}
        return JobSettings(stated, self._script_folder, self.spelled)._training()

    def presets(self) -> StatedTraining:
        """What configuration files say of training in general; a trace knows better."""
        preset = {key: setting for key, setting in self._settings.items() if setting.layer == FILES}
        return JobSettings(preset, self._script_folder, self.spelled)._training()

    def _training(self) -> StatedTraining:
        from slurm_gpumem.estimators.training_job import StatedTraining

        return StatedTraining(
            batch_size=self._number("batch-size"),
            optimizer=self.text("optimizer"),
            precision=self.text("precision"),
            grad_accumulation=self._number("grad-accumulation"),
            checkpointing=self._switch("checkpointing"),
            channels_last=self._switch("channels-last"),
            loss=self.text("loss"),
            input_dtype=self.text("input-dtype"),
            torch=self.text("torch"),
            module_loading=self.text("module-loading"),
            alloc_conf=self.text("alloc-conf"),
            cublas_workspace=self.text("cublas-workspace"),
            strategy=self.text("strategy"),
        )

    def remarks(self) -> Tuple[str, ...]:
        """What to know of how values in force are understood."""
        from slurm_gpumem.training_names import optimizer_remark

        remark = optimizer_remark(self.text("optimizer"))
        return (remark,) if remark else ()

    def contradiction(self) -> Optional[str]:
        """What counts where one layer gives both a model and a size by hand; None where none does."""
        mem, model = self._settings.get("mem"), self._settings.get("model")
        if mem is None or model is None or mem.layer != model.layer:
            return None
        return (
            f"{mem.origin}: {mem.value} of GPU memory is asked for as given by hand; the model "
            f"({model.origin}) is not estimated. Remove one of the two"
        )

    def _layer(self, key: str) -> int:
        setting = self._settings.get(key)
        return FILES if setting is None else setting.layer

    def _number(self, key: str) -> Optional[int]:
        setting = self._settings.get(key)
        if setting is None:
            return None
        try:
            number = int(setting.value)
        except ValueError:
            raise UsageError(
                f"{setting.origin}: {key} must be a whole number, not {setting.value!r}"
            ) from None
        if number < 1:
            raise UsageError(f"{setting.origin}: {key} must be at least 1, not {number}")
        return number

    def _switch(self, key: str) -> Optional[bool]:
        setting = self._settings.get(key)
        if setting is None:
            return None
        if setting.value.lower() not in _YES:
            raise UsageError(f"{setting.origin}: {key} must be yes or no, not {setting.value!r}")
        return _YES[setting.value.lower()]

    def _path(self, model: Setting) -> str:
        """The path with ~ and $HOME replaced; a #GPUMEM line's relative one may be beside the script."""
        path = model.value
        if "\n" in path or os.path.exists(path):
            return path
        path = os.path.expanduser(os.path.expandvars(path))
        unset = re.search(r"\$\{?([A-Za-z_]\w*)", path) if "$" in path else None
        if unset and unset[1] not in os.environ and not os.path.exists(path):
            raise UsageError(f"{model.origin}: {model.value}: the variable {unset[1]} is not set here")
        if self._script_folder and not os.path.isabs(path) and not os.path.exists(path):
            beside = os.path.join(self._script_folder, path)
            if os.path.exists(beside):
                return beside
        return path


def job_settings(
    config: Config,
    directives: Sequence[Directive],
    environ: Mapping[str, str],
    options: OwnOptions,
    *,
    script: Optional[str] = None,
) -> JobSettings:
    """Lay the layers over each other."""
    merged: Dict[str, Setting] = {
        key: Setting(default.value, default.origin, FILES) for key, default in config.job.items()
    }
    for directive in directives:
        origin = f"{script or 'script'}, line {directive.line}"
        merged[directive.key] = Setting(directive.value, origin, DIRECTIVES)
    for key, (value, variable) in job_variables(environ).items():
        merged[key] = Setting(value, variable, ENVIRONMENT)
    for key, value in options.values.items():
        merged[key] = Setting(value, options.spelled(key), OPTIONS)
    model = merged.get("model")
    folder = os.path.dirname(script) if script and model and model.layer == DIRECTIVES else None
    return JobSettings(merged, folder, options.spelled)
