#!/bin/bash
# Trains ResNet-50 on images of 224 x 224 pixels.
# Submit it with: gpusbatch resnet50.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=resnet50
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=resnet50.txt batch-size=128 optimizer=sgd precision=fp32 torch=2.11

# Your own script would train here: python train.py
# In the demo a stand-in takes its place and holds as much GPU memory as this very training took on an
# NVIDIA H200: 13792 MiB (lab/data/ground-truth, torchvision/resnet50@224/b128/sgd/fp32).
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.87 --name resnet50 --peak 13792 --steps 40 --seconds 10
