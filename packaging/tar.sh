#!/bin/sh
# tar.sh FOLDER ARCHIVE: what is in a folder as tar.gz, the same bytes whenever and by whomever it is made.
set -eu
find "${1:?}" -mindepth 1 -printf '%P\0' | LC_ALL=C sort -z | tar -C "$1" --null --no-recursion -T - -cf - --format=gnu \
    --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX | gzip -9n >"${2:?}"
