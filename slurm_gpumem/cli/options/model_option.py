"""`gpusbatch --model` of what is no file: standard input (-), or code (timm:resnet50, train.py:build)."""

from __future__ import annotations

import os

from slurm_gpumem.errors import GpumemError, TargetError, UsageError
from slurm_gpumem.submission.submission import Submission

STANDARD_INPUT = "-"


def with_named_model(asked: Submission) -> Submission:
    """What is asked, with the summary of a model that is no file; files are read later, and quickly."""
    model = asked.settings.model
    if model is None or asked.raw.summary is not None or "\n" in model or _is_summary_file(model):
        return asked
    if model == STANDARD_INPUT:
        from slurm_gpumem.cli.options.options import named_summary

        if asked.script is not None and not asked.script.path:
            raise UsageError("--model - and the job script cannot both come from standard input; name a file")
        return asked._replace(raw=asked.raw._replace(summary=named_summary(model)))
    from slurm_gpumem.tracing.model.request import is_code

    return _with_trace(asked, model) if is_code(model) else asked


def _is_summary_file(model: str) -> bool:
    return os.path.isfile(model) and not model.endswith(".py")


def _with_trace(asked: Submission, model: str) -> Submission:
    """Trace the code as `gpumem estimate` does; its further options are those of `gpumem summarize`."""
    import argparse

    from slurm_gpumem.cli.options.target_options import add_target_options, traced_subject

    parser = argparse.ArgumentParser()
    add_target_options(parser)
    try:
        traced = traced_subject(model, parser.parse_args([]), asked.settings)
    except GpumemError as error:
        raise TargetError(
            f"{error}\nTo say more of the model's code: gpumem summarize {model} ... -o summary.json, "
            "then --model summary.json"
        ) from None
    assert traced is not None
    return asked._replace(
        raw=asked.raw._replace(summary=traced.summary),
        settings=asked.settings.without("input"),
        warnings=(*asked.warnings, *traced.notes),
    )
