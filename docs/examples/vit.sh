#!/bin/bash
# Trains ViT-B/16 on images of 224 pixels.
# Submit it with: gpusbatch vit.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=vit
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=vit.txt batch-size=64 optimizer=adamw precision=fp32

# Your own script would train here: python train.py
# In the demo a stand-in takes its place. It holds --peak MiB of GPU memory and prints steps as training does.
gpumem-standin --name vit --peak 9291 --steps 40 --seconds 6
