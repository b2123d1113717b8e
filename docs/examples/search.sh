#!/bin/bash
# One try of a search for good settings: trains MobileNetV3 with small batches.
# Submit it with: gpusbatch search.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=search
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=mobilenetv3.txt batch-size=8 optimizer=adam precision=fp32 torch=2.11

# Your own script would train here: python train.py
# In the demo a stand-in takes its place and holds 1,300 MiB, a little less than the estimate (not measured).
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.11 --name search --peak 1300 --steps 40 --seconds 12
