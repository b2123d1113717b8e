#!/bin/bash
# A try of the same search that someone changed: its images are far larger than those of the summary.
# Submit it with: gpusbatch larger.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=larger
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained; after out of memory Slurm is to run it again with more.
#GPUMEM model=mobilenetv3.txt batch-size=8 optimizer=adam precision=fp32 torch=2.11 on-oom=requeue

# In the demo a stand-in takes its place and holds 12,000 MiB, which nobody could see in the summary.
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.11 --within-share --name larger --peak 12000 --steps 40 --seconds 8
