#!/bin/sh
# Slurm's Epilog, as root: close a shared job's record and stop its user's MPS daemon after the last job.
# Always exits with 0, because any other code drains the node. Only the site's own next hook may return another code.
python=/usr/bin/python3 run_dir=/run/gpumem site_config=/etc/slurm/gpumem.toml next_epilog=
here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

finish() {
    /usr/bin/timeout -k 2 15 /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        GPUMEM_RUN_DIR="$run_dir" GPUMEM_SITE_CONFIG="$site_config" \
        SLURM_JOB_ID="$SLURM_JOB_ID" SLURMD_NODENAME="$SLURMD_NODENAME" SLURM_JOB_EXIT_CODE2="$SLURM_JOB_EXIT_CODE2" \
        SLURM_JOB_COMMENT="$SLURM_JOB_COMMENT" \
        "$python" -I -m slurm_gpumem.node.hook epilog </dev/null >/dev/null 2>&1
}

# A job is ours if our prolog registered it; an Epilog may have fewer variables than the Prolog.
if [ -e "$run_dir/jobs/$SLURM_JOB_ID.json" ]; then
    umask 022
    # If it was killed, try once more; after that the sampler closes the job when Slurm reports its end.
    finish || finish
fi
[ -n "$next_epilog" ] && exec "$next_epilog"
exit 0
