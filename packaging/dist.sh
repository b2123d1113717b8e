#!/bin/sh
# dist.sh PYTHON OUT [URL]: source archive and wheel for PyPI in the folder OUT, the wheel built from the archive alone.
# URL: where the pages of the repository are, for the links in the description.
set -eu
python=$(cd "$(dirname "${1:?usage: dist.sh PYTHON OUT [URL]}")" && pwd)/$(basename "$1")
out=$(realpath -m "${2:?usage: dist.sh PYTHON OUT [URL]}") url=${3:-} here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
"$here/export.sh" "$scratch/source"
"$python" "$here/pypi_readme.py" "$scratch/source/README.md" ${url:+"$url"}
rm -rf "$out" && mkdir -p "$out"
"$python" -m build --outdir "$out" "$scratch/source" >"$scratch/log" 2>&1 || { tail -n 30 "$scratch/log" >&2; exit 1; }
# What is built keeps no time but the last commit's.
[ -z "${SOURCE_DATE_EPOCH:-}" ] || for archive in "$out"/*.tar.gz; do
    mkdir "$scratch/archive" && tar -xzf "$archive" -C "$scratch/archive"
    "$here/tar.sh" "$scratch/archive" "$archive"
done
ls "$out"
