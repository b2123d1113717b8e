"""Tensor and pipeline parallelism in a traced script: noted where it can be computed, else refused."""

from __future__ import annotations

from typing import Any

from slurm_gpumem.tracing.script.imports import AfterImport


def install(tracer: Any) -> None:
    """Wait for the modules that divide a model in these ways."""

    def tensor(module: Any) -> None:
        def parallelize_module(model: Any, device_mesh: Any = None, *args: Any, **kwargs: Any) -> Any:
            size = device_mesh.size() if device_mesh is not None else tracer.division.ranks
            if size < tracer.division.ranks:
                tracer.division.cannot("it combines tensor parallelism with another way to divide the model")
            tracer.division.whole("tp")
            return model

        module.parallelize_module = parallelize_module

    def pipeline(module: Any) -> None:
        def refused(*args: Any, **kwargs: Any) -> Any:
            tracer.division.cannot("it divides its model into the stages of a pipeline")
            raise RuntimeError("a pipeline's stages are on other ranks, which a trace does not have")

        for name in ("pipeline", "PipelineStage"):
            setattr(module, name, refused)

    AfterImport(
        {
            "torch.distributed.tensor.parallel": tensor,
            "torch.distributed.tensor.parallel.api": tensor,
            "torch.distributed.pipelining": pipeline,
        }
    ).install()
