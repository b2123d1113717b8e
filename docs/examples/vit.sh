#!/bin/bash
# Trains ViT-B/16 on images of 224 x 224 pixels.
# Submit it with: gpusbatch vit.sh
#
# Lines with #SBATCH are for Slurm: a name, and at most ten minutes.
#SBATCH --job-name=vit
#SBATCH --time=00:10:00
#
# Lines with #GPUMEM tell gpusbatch what is trained, so that it can estimate the GPU memory.
#GPUMEM model=vit.txt batch-size=128 optimizer=adam precision=amp-bf16 torch=2.11

# Your own script would train here: python train.py
# In the demo a stand-in takes its place and holds as much GPU memory as this very training took on an
# NVIDIA H200: 11002 MiB (lab/data/ground-truth, torchvision/vit_b_16@224/b128/adam/amp-bf16).
# It keeps the GPU as busy as gpusbatch expects (not measured).
gpumem-standin --sm 0.85 --name vit --peak 11002 --steps 40 --seconds 10
