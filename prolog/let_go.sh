#!/bin/sh
# shellcheck disable=SC2034,SC2154
# Sourced by task_epilog.sh, as the user: wait for processes of this task that are still at an MPS server.
# Slurm kills them as soon as we are done, and one that is killed there takes its neighbours along. The sampler lets
# them go, when they have had their time to save a checkpoint; the bound is there for a node without a sampler.
clients=$run_dir/jobs/$SLURM_JOB_ID.clients overran='' waited=0

leaves_clients() {
    [ -r "$clients" ] || return 1
    while read -r pid task step; do
        [ "$pid" = overran ] && overran=yes
        [ "$step" = "$PPID" ] && [ ! -e "/proc/$task" ] && [ -e "/proc/$pid" ] && return 0
    done <"$clients"
    return 1
}
while leaves_clients && [ $waited -lt 1200 ]; do
    waited=$((waited + 1)) && /bin/sleep 0.1
done
