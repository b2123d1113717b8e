#!/bin/bash
# Runs of a search, of which gpusbatch knows nothing but this script.
# Submit it with: gpusbatch --array=0-7 sweep.sh
#
# Lines with #SBATCH are for Slurm: a name, at most ten minutes, a GPU.
#SBATCH --job-name=sweep
#SBATCH --time=00:10:00 --gres=gpu:1

# Your own script would train here: python train.py --seed $SLURM_ARRAY_TASK_ID
# In the demo a stand-in takes its place and holds 14,000 MiB (not measured).
gpumem-standin --sm 0.11 --name sweep --peak 14000 --steps 40 --seconds 6
