#!/bin/sh
# shellcheck disable=SC2154
# Sourced by task_prolog.sh, as the user: the library that the CUDA driver loads, with which a process leaves its MPS
# server before it ends. hooks.conf may name it; else it is beside the hooks, or where the packages build it. A
# profiler's own library stays.
for library in "$end_library" "$here/libgpumem_end.so" /usr/libexec/slurm-gpumem/libgpumem_end.so; do
    if [ ! -r "$library" ] || [ -n "$CUDA_INJECTION64_PATH" ]; then continue; fi
    printf 'export %s\n' "CUDA_INJECTION64_PATH=$library" "GPUMEM_END_SOCKET=$run_dir/mps/end.sock"
    break
done
