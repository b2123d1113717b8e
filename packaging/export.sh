#!/bin/sh
# export.sh DEST: a copy of the sources for a build, which writes beside them; what git ignores stays behind.
set -eu
dest=${1:?usage: export.sh DEST}
rm -rf "$dest" && mkdir -p "$dest"
# A file that is removed but not yet committed is still listed.
git ls-files -co --exclude-standard -z | xargs -0 -r ls -d 2>/dev/null | tar -cf - -T - | tar -xf - -C "$dest"
# The same bytes from the same sources, whenever they were checked out.
[ -z "${SOURCE_DATE_EPOCH:-}" ] || find "$dest" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
