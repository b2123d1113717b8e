#!/bin/sh
# Slurm's Epilog, as root: close a shared job's record and stop its user's MPS daemon after the last job.
# Always exits with 0, because any other code drains the node. Only the site's own next hook may return another code.
python=/usr/bin/python3 run_dir=/run/gpumem site_config=/etc/slurm/gpumem.toml next_epilog=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

# A job is ours if our prolog registered it; an Epilog may have fewer variables than the Prolog. One that nobody
# serves is closed by the sampler, when Slurm reports its end.
# shellcheck source=prolog/hand_over.sh
[ -e "$run_dir/jobs/$SLURM_JOB_ID.json" ] && [ -r "$here/hand_over.sh" ] && . "$here/hand_over.sh" &&
    hand_over epilog SLURM_JOB_ID="$SLURM_JOB_ID" SLURMD_NODENAME="$SLURMD_NODENAME" \
        SLURM_JOB_EXIT_CODE2="$SLURM_JOB_EXIT_CODE2" SLURM_JOB_COMMENT="$SLURM_JOB_COMMENT"
[ -n "$next_epilog" ] && exec "$next_epilog"
exit 0
