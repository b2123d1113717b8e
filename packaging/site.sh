#!/bin/sh
# site.sh PYTHON OUT: the documentation site in the folder OUT, by the mkdocs of that Python. Run at the top of the
# sources. Any broken link is an error.
set -eu
python=${1:?usage: site.sh PYTHON OUT} out=$(realpath -m "${2:?usage: site.sh PYTHON OUT}") here=$(dirname "$0")
# One folder, with the same paths as in the sources, so that links work here and on a forge.
SITE_SOURCE=$(mktemp -d) && trap 'rm -rf "$SITE_SOURCE"' EXIT
find README.md CHANGELOG.md SECURITY.md docs models lab/data lab/docs \( -name '*.md' -o -name '*.svg' -o -name '*.png' -o -name '*.toml' \
    -o -path 'docs/examples/*' -o -path '*docs/*.json' -o -path '*docs/*.jsonl' \) -type f |
    while read -r file; do install -D -m 644 "$file" "$SITE_SOURCE/$file"; done
install -m 644 "$here/site.css" "$here/site_worker.js" "$here/site_versions.js" "$SITE_SOURCE/"
SITE_NAME="slurm_gpumem $("$python" -c 'import slurm_gpumem; print(slurm_gpumem.__version__)')"
config=mkdocs.yml
"$python" -c 'import material.plugins.offline' 2>/dev/null && config=mkdocs-offline.yml
export SITE_SOURCE SITE_NAME NO_MKDOCS_2_WARNING=1
"$python" -m mkdocs build --strict --clean --config-file "$here/$config" --site-dir "$out"
