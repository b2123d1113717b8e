#!/bin/bash
# Trains BERT (base) to fill in masked words, on texts of 128 tokens.
# Submit it with: gpusbatch bert.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=bert
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=bert.txt batch-size=64 optimizer=adamw precision=fp32 torch=2.11

# Your own script would train here: python train.py
# In the demo a stand-in takes its place and holds as much GPU memory as this very training took on an
# NVIDIA H200: 11868 MiB (lab/data/ground-truth, transformers/bert-base-mlm@128/b64/adamw/fp32).
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.91 --name bert --peak 11868 --steps 40 --seconds 10
