#!/bin/bash
# Trains GPT-2 (small) on texts of 512 tokens.
# Submit it with: gpusbatch gpt2.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=gpt2
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=gpt2.txt batch-size=8 optimizer=adamw precision=fp32

# Your own script would train here: python train.py
# In the demo a stand-in takes its place. It holds --peak MiB of GPU memory and prints steps as training does.
gpumem-standin --name gpt2 --peak 7801 --steps 40 --seconds 6
