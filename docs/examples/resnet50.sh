#!/bin/bash
# Trains ResNet-50 on images of 224 pixels.
# Submit it with: gpusbatch resnet50.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=resnet50
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=resnet50.txt batch-size=128 optimizer=adam precision=fp32

# Your own script would train here: python train.py
# In the demo a stand-in takes its place. It holds --peak MiB of GPU memory and prints steps as training does.
gpumem-standin --name resnet50 --peak 11636 --steps 40 --seconds 6
