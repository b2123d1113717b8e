#!/bin/sh
# shellcheck disable=SC2016,SC2154
# Sourced by prolog.sh and epilog.sh, after hooks.conf: have one of our jobs served by the node's sampler, which is there
# already, or where none runs, by a Python, which starts one. Ends in about 7 seconds at most, served or not: Slurm
# requeues a job whose Prolog takes 10, and drains a node where it takes much longer. See `gpumem docs node`.
patience=4 late=2
box=$run_dir/inbox

sampler_runs() { read -r sampler <"$box/sampler" && [ -e "/proc/$sampler/exe" ]; }
ring() { /usr/bin/timeout --foreground "$1" /bin/sh -c 'echo >"$0" && read -r answer <&9' "$box/bell"; }
in_time() { read -r now _ </proc/uptime && left=$((${began%.*} + patience - ${now%.*})) && [ "$left" -gt 0 ]; }
start_python() {
    limit=$1 hook=$2 && shift 2
    /usr/bin/timeout -k 1 "$limit" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        GPUMEM_RUN_DIR="$run_dir" GPUMEM_SITE_CONFIG="$site_config" "$@" \
        "$python" -I -m slurm_gpumem.node.hook "$hook" 8>&- 9>&-
}

# hand_over HOOK KEY=VALUE...: in a subshell, so that nothing of it is open in the site's own hook.
hand_over() (
    case $SLURM_JOB_ID in '' | *[!0-9]*) exit ;; esac
    umask 022
    [ -p "$box/bell" ] || { /bin/mkdir -p "$run_dir"; /bin/mkdir -m 700 "$box"; /usr/bin/mkfifo -m 600 "$box/bell"; }
    request=$box/$1.$SLURM_JOB_ID.$$
    { [ -O "$box" ] && [ -p "$box/bell" ] && /usr/bin/mkfifo -m 600 "$request.answer" &&
        command exec 8>>"$box/starting" 9<>"$request.answer" && printf '%s\0' "$@" end >"$request"; } ||
        { start_python $((patience + late)) "$@"; exit; }
    read -r began _ </proc/uptime
    while in_time; do
        # One at a time starts a Python; the others wait, until there is a sampler or it is their turn.
        sampler_runs || { /usr/bin/flock -w 1 8 || continue; sampler_runs || break; /usr/bin/flock -u 8; }
        # A ring that is over at the moment of the answer may lose it: its FIFO is gone then.
        ring $((left < 2 ? left : 2)) || [ ! -e "$request.answer" ] && exit
    done
    # Whoever takes the request away has the job: a sampler that has it is at work.
    /bin/rm "$request" || ! sampler_runs || { ring "$late"; exit; }
    /bin/rm -f "$request".*
    # If it was killed, and not because of its time, try once more.
    /usr/bin/flock -w 0.3 8 && { start_python $((left > 0 ? left + late : late)) "$@" || [ $? -eq 124 ] || start_python "$late" "$@"; }
) </dev/null >/dev/null 2>&1
