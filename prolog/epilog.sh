#!/bin/sh
# Slurm's Epilog, as root: close a shared job's record and stop its user's MPS daemon after the last job.
# Always exits with 0, because any other code drains the node. Only the site's own next hook may return another code.
python=/usr/bin/python3 run_dir=/run/gpumem site_config=/etc/slurm/gpumem.toml next_epilog=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

# A job is ours if our prolog registered it. If that gave up, or Slurm left it out, which happens to requeued jobs, its
# GPU shows it. One that nobody serves in time is closed by the sampler.
ours=$SLURM_JOB_GPUS
[ -e "$run_dir/jobs/$SLURM_JOB_ID.json" ] && ours=yes
# shellcheck source=prolog/hand_over.sh
[ -n "$ours" ] && [ -r "$here/hand_over.sh" ] && . "$here/hand_over.sh" && hand_over epilog \
    SLURM_CONF="$SLURM_CONF" SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_JOB_UID="$SLURM_JOB_UID" \
    SLURM_JOB_USER="$SLURM_JOB_USER" SLURM_JOB_GPUS="$SLURM_JOB_GPUS" CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" \
    SLURM_JOB_COMMENT="$SLURM_JOB_COMMENT" SLURMD_NODENAME="$SLURMD_NODENAME" \
    SLURM_CLUSTER_NAME="$SLURM_CLUSTER_NAME" SLURM_JOB_RESTART_COUNT="$SLURM_JOB_RESTART_COUNT" \
    SLURM_JOB_PARTITION="$SLURM_JOB_PARTITION" SLURM_JOB_START_TIME="$SLURM_JOB_START_TIME" \
    SLURM_JOB_EXIT_CODE2="$SLURM_JOB_EXIT_CODE2"
[ -n "$next_epilog" ] && exec "$next_epilog"
exit 0
