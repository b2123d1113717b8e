#!/bin/sh
# Slurm's Prolog, as root: prepare MPS for a shared job and open its record. See `gpumem docs node`.
# Always exits with 0, because any other code drains the node. Only the site's own next hook may return another code.
python=/usr/bin/python3 run_dir=/run/gpumem site_config=/etc/slurm/gpumem.toml next_prolog='' here=${0%/*}
# shellcheck source=/dev/null
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"

leave() { [ -n "$next_prolog" ] && exec "$next_prolog"; exit 0; }

# Slurm gives a Prolog the GPU, not the shards: every job that has one is ours.
[ -n "$SLURM_JOB_GPUS" ] || leave

# Slurm gives the name of a log for errors where the job has asked for one; the task epilog is given neither name.
one_log=no
[ -n "$SLURM_JOB_STDOUT" ] && [ "${SLURM_JOB_STDERR:-$SLURM_JOB_STDOUT}" = "$SLURM_JOB_STDOUT" ] && one_log=yes
# What lies there is of an earlier run, whose epilog nobody served.
task_file=$run_dir/jobs/$SLURM_JOB_ID.task
[ -e "$task_file" ] && /bin/rm -f "$task_file"
# shellcheck source=prolog/hand_over.sh
[ -r "$here/hand_over.sh" ] && . "$here/hand_over.sh" && hand_over prolog \
    SLURM_CONF="$SLURM_CONF" SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_JOB_UID="$SLURM_JOB_UID" \
    SLURM_JOB_USER="$SLURM_JOB_USER" SLURM_JOB_GPUS="$SLURM_JOB_GPUS" CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" \
    SLURM_JOB_COMMENT="$SLURM_JOB_COMMENT" SLURMD_NODENAME="$SLURMD_NODENAME" \
    SLURM_CLUSTER_NAME="$SLURM_CLUSTER_NAME" SLURM_JOB_RESTART_COUNT="$SLURM_JOB_RESTART_COUNT" \
    SLURM_JOB_PARTITION="$SLURM_JOB_PARTITION" SLURM_JOB_SLUID="$SLURM_JOB_SLUID" ONE_LOG="$one_log" && leave
# Nobody has served it yet, and the job starts now: its program still has to learn where to save, and when (node/sampler/slots.py).
# Whoever is at it may write the whole file at any time: that one stays.
case " $SLURM_JOB_COMMENT" in *" gpumem/1:"*) (
    record=${SLURM_JOB_COMMENT##*gpumem/1:} record=,${record%% *} now=$(/bin/date -r "$request.late" +%s || /bin/date +%s)
    slot=${record##*,slot=} slot=${slot%%[!0-9]*} save=${record##*,save=} save=${save%%[!0-9]*}
    lead=$((${slot:-0} > 3000 ? 300 : ${slot:-0} / 10)) lead=$((${save:-0} * 2 > lead ? ${save:-0} * 2 : lead))
    [ $((lead * 2)) -gt "${slot:-0}" ] && lead=$((${slot:-0} / 2))
    umask 022 && /bin/mkdir -p "$run_dir/jobs" && set -C
    printf '%s\n' 'record yes' "run ${SLURM_JOB_RESTART_COUNT:-0}" ${slot:+"slot $((now + slot)) $((now + slot - lead))"} >"$task_file"
) 2>/dev/null ;; esac
leave
