#!/bin/bash
# Trains BERT (base) as a classifier of texts of 128 tokens.
# Submit it with: gpusbatch bert.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=bert
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=bert.txt batch-size=64 optimizer=adamw precision=fp32

# Your own script would train here: python train.py
# In the demo a stand-in takes its place. It holds --peak MiB of GPU memory and prints steps as training does.
gpumem-standin --name bert --peak 7691 --steps 40 --seconds 6
