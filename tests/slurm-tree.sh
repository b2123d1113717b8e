#!/bin/bash
# slurm-tree.sh SUITE DIR: Debian's Slurm of that suite (trixie, sid ...) in a tree of its own, for --slurm-root.
# Takes DEBIAN_MIRROR, or the mirror that this machine's apt uses. Needs root and debootstrap.
set -euo pipefail
suite=${1:?usage: slurm-tree.sh SUITE DIR}; dir=$(realpath -m "${2:?usage: slurm-tree SUITE DIR}")
[ -e "$dir/.complete" ] && exit 0
# shellcheck disable=SC2016  # apt-get itself fills in $(SITE)
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' | sort -u | grep -v security | sed -n 1p)}
# Built beside it and renamed: a tree that exists is whole.
build=$dir.building; trap 'rm -rf --one-file-system "$build"' EXIT
rm -rf --one-file-system "$build"; mkdir -p "$build"
debootstrap --variant=minbase "$suite" "$build" "$mirror" >"$dir.log" 2>&1 || { tail -n 20 "$dir.log" >&2; exit 1; }
# Nothing may be started while packages are set up.
printf '#!/bin/sh\nexit 101\n' >"$build/usr/sbin/policy-rc.d"; chmod 755 "$build/usr/sbin/policy-rc.d"
# shellcheck disable=SC2016  # the inner shell fills in $0
# A mount namespace of its own: /proc is gone again however this ends.
unshare --mount bash -c 'mount -t proc proc "$0/proc" && exec chroot "$0" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client slurmdbd python3' "$build" \
  >>"$dir.log" 2>&1 || { tail -n 20 "$dir.log" >&2; exit 1; }
rm -rf "$build"/var/cache/apt/archives/*.deb "$build"/var/lib/apt/lists/*
touch "$build/.complete"; mv "$build" "$dir"; trap - EXIT
