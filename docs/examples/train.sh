#!/bin/bash
#SBATCH --gres=gpu:1 --time=1:00:00
python train.py --batch-size 128
