#!/bin/sh
# shellcheck disable=SC2154
# Sourced by prolog.sh and epilog.sh, after hooks.conf: have one of our jobs served by the node's sampler, which is there
# already, or where none runs, by a Python, which starts one. Ends in about 6 seconds at most, with 0 if it was served:
# Slurm requeues a job whose Prolog takes 10, and drains a node where it takes much longer. See `gpumem docs node`.
patience=3 late=2 box=$run_dir/inbox

sampler_runs() { read -r sampler <"$box/sampler" && [ -e "/proc/$sampler/exe" ]; }
served() { [ ! -e "$request" ] && [ ! -e "$request.taken" ]; }
in_time() { read -r now _ </proc/uptime && left=$((${began%.*} + patience - ${now%.*})) && [ "$left" -gt 0 ]; }
# nap SECONDS: the sampler ends the sleep when it has served us. Each process that a hook starts counts in a burst.
nap() {
    /bin/sleep "$1" & echo $! >"$request.sleep"
    if served; then kill $! && /bin/rm -f "$request.sleep"; else echo 1<>"$box/bell" && wait $!; served; fi
}
start_python() (
    limit=$1 hook=$2 && shift 2 && umask 022
    # Ahead of jobs: others wait for the sampler that it starts.
    exec /usr/bin/timeout -k 1 "$limit" /usr/bin/nice -n -20 /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        GPUMEM_RUN_DIR="$run_dir" GPUMEM_SITE_CONFIG="$site_config" GPUMEM_REQUEST="$request" \
        "$@" "$python" -I -m slurm_gpumem.node.hook "$hook" 8>&-
)
have_it_served() {
    [ -p "$box/bell" ] || (umask 022; /bin/mkdir -p "$run_dir"; /bin/mkdir -m 700 "$box"; /usr/bin/mkfifo -m 600 "$box/bell")
    read -r began _ </proc/uptime
    request=$box/$1.$SLURM_JOB_ID.$$
    { [ -O "$box" ] && [ -p "$box/bell" ] && command exec 8>>"$box/starting" && printf '%s\0' "$@" end >"$request"; } ||
        { start_python $((patience + late)) "$@"; return; }
    while in_time; do
        # One at a time starts a Python; the others wait, until there is a sampler or it is their turn.
        sampler_runs || { /usr/bin/flock -w 1 8 || continue; sampler_runs || break; /usr/bin/flock -u 8; }
        nap $((left < 2 ? left : 2)) && return
    done
    # Whoever takes the request away has the job: a sampler that has it is at work. What is left, one notes when it can.
    { /bin/mv "$request" "$request.late" && echo 1<>"$box/bell"; } || ! sampler_runs || { nap "$late"; return; }
    # If it was killed, and not because of its time, try once more.
    /usr/bin/flock -w 0.3 8 && { start_python $((left > 0 ? left + late : late)) "$@" ||
        { [ $? -ne 124 ] && start_python "$late" "$@"; }; } && /bin/rm -f "$request".*
}
hand_over() { case $SLURM_JOB_ID in '' | *[!0-9]*) ;; *) have_it_served "$@"; set -- $?; exec 8>&-; return "$1" ;; esac; } </dev/null >/dev/null 2>&1
