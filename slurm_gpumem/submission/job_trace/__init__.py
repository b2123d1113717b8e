"""A batch script traced before it is submitted: `gpusbatch --trace job.sh`.

    before_submission → cache (known already?) → batch_script (this node) or trace_job (in a short Slurm job)

The script runs as Slurm would start it, under the tracer of tracing/script and in its private copy of the
files; `stubs` takes the place of srun, mpirun, nvidia-smi and of what would act on the cluster.
"""
