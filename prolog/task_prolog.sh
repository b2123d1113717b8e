#!/bin/sh
# shellcheck disable=SC1090,SC1091,SC2034
# Slurm's TaskProlog, as the user: connect a shared job's tasks to MPS, with a memory limit from its shards.
# Slurm obeys each "export KEY=VALUE" and "unset KEY". Any exit code but 0 would fail the job.
run_dir=/run/gpumem next_task_prolog='' here=${0%/*} end_library=''
[ -r "$here/hooks.conf" ] && . "$here/hooks.conf"
file=$run_dir/jobs/$SLURM_JOB_ID.task number=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}
record='' run='' slot='' priority='' mode='' shard_mib=1024 headroom_mib=0 claim_mib='' uuid='' pipe=''
[ -r "$file" ] &&
    while read -r key one two three _; do
        case $key in
        mode) mode=$one ;; priority) priority=$one ;; shard_mib) shard_mib=$one ;; headroom_mib) headroom_mib=$one ;;
        record) record=$one ;; run) run=$one ;; slot) slot="$one $two" ;; claim_mib) claim_mib=$one ;;
        gpu) case $number in "$one" | "$two") uuid=$two pipe=$three ;; esac ;;
        esac
    done <"$file"
# Steps of a task that became a share while it waited would ask for its GPU. A script can resume if ATTEMPT is more than 1.
[ -n "$SLURM_SHARDS_ON_NODE$record" ] && printf '%s\n' "export GPUMEM_ATTEMPT=$((${SLURM_RESTART_COUNT:-0} + 1))" \
    ${SLURM_SHARDS_ON_NODE:+${SLURM_GPUS_PER_NODE:+"unset SLURM_GPUS_PER_NODE"}}
# Where a program saves, by when, and what it goes on from (gpumem docs slots), also where Slurm ran no Prolog for this run.
saves=${GPUMEM_CHECKPOINTS:-$SLURM_SUBMIT_DIR/gpumem-checkpoints}/$SLURM_JOB_ID # task_epilog.sh looks there, too
[ -n "$SLURM_RESTART_COUNT" ] && [ -e "$saves/state.json" ] && record=yes
[ "$record" = yes ] && echo "export GPUMEM_SLOT_DIR=$saves" && [ -e "$saves/latest" ] &&
    printf 'export %s\n' GPUMEM_RESUME=1 "GPUMEM_RESUME_FILE=$(/bin/readlink -f "$saves/latest")"
[ -n "$slot" ] && [ "${run:-0}" = "${SLURM_RESTART_COUNT:-0}" ] && printf 'export %s\n' "GPUMEM_SLOT_END=${slot% *}" "GPUMEM_SAVE_AT=${slot#* }"
# Only for shares, which JAX and TensorFlow exceed at their start. Not by a fraction: jaxlib fails where a script sets its other name.
share=$SLURM_SHARDS_ON_NODE${record:+$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE} xla=$XLA_PYTHON_CLIENT_PREALLOCATE$XLA_PYTHON_CLIENT_ALLOCATOR
[ -n "$share" ] && [ -z "$xla$XLA_PYTHON_CLIENT_MEM_FRACTION$XLA_CLIENT_MEM_FRACTION" ] && echo "export XLA_PYTHON_CLIENT_PREALLOCATE=false"
[ -n "$share" ] && [ -z "$TF_FORCE_GPU_ALLOW_GROWTH$TF_GPU_ALLOCATOR" ] && echo "export TF_FORCE_GPU_ALLOW_GROWTH=true"
if [ "${mode%-shared}" = mps ] && [ -n "$uuid" ] && [ -n "$share" ]; then
    printf 'export %s\n' "CUDA_MPS_PIPE_DIRECTORY=$pipe" "CUDA_VISIBLE_DEVICES=$uuid"
    mib=${SLURM_SHARDS_ON_NODE:+$((SLURM_SHARDS_ON_NODE * shard_mib + headroom_mib))} mib=${mib:-$claim_mib}
    # The limit is per process: a step's tasks here share it equally. One daemon cannot serve a task with several GPUs.
    tasks=1 rest=$SLURM_GTIDS && while [ "$rest" != "${rest#*,}" ]; do rest=${rest#*,} tasks=$((tasks + 1)); done
    [ -n "$mib" ] && echo "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=$uuid=$((mib / tasks))M"
    [ "$priority" = low ] && echo "export CUDA_MPS_CLIENT_PRIORITY=1"
    [ -z "$SLURM_SHARDS_ON_NODE" ] && echo "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" # gres/mps: asked for memory, not for SMs
    [ -r "$here/end_exports.sh" ] && . "$here/end_exports.sh"
fi
[ -z "$next_task_prolog" ] || exec "$next_task_prolog"
