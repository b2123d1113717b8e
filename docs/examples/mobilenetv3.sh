#!/bin/bash
# Trains MobileNetV3 (large) on images of 224 x 224 pixels.
# Submit it with: gpusbatch mobilenetv3.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=mobilenetv3
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=mobilenetv3.txt batch-size=64 optimizer=adam precision=fp32 torch=2.11

# Your own script would train here: python train.py
# In the demo a stand-in takes its place and holds as much GPU memory as this very training took on an
# NVIDIA H200: 4308 MiB (lab/data/ground-truth, timm/mobilenetv3_large_100@224/b64/adam/fp32).
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.56 --name mobilenetv3 --peak 4308 --steps 40 --seconds 10
