#!/bin/bash
# make-root.sh SUITE ARCHIVE: a minimal Debian as a tar archive, from DEBIAN_MIRROR or the mirror that this machine's
# apt uses.
set -euo pipefail
suite=${1:?usage: make-root.sh SUITE ARCHIVE} archive=${2:?usage: make-root.sh SUITE ARCHIVE}
# shellcheck disable=SC2016  # apt-get itself fills in $(SITE)
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' | sort -u | grep -v security | sed -n 1p)}
mmdebstrap --variant=apt "$suite" "$archive.tar" "$mirror" && mv "$archive.tar" "$archive"
