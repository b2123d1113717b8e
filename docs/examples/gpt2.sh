#!/bin/bash
# Trains GPT-2 (small) on texts of 512 tokens.
# Submit it with: gpusbatch gpt2.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=gpt2
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=gpt2.txt batch-size=4 optimizer=adam precision=amp-bf16 torch=2.11

# Your own script would train here: python train.py
# In the demo a stand-in takes its place and holds as much GPU memory as this very training took on an
# NVIDIA H200: 5974 MiB (lab/data/ground-truth, transformers/gpt2@512/b4/adam/amp-bf16).
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.39 --name gpt2 --peak 5974 --steps 40 --seconds 10
