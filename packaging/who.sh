#!/bin/sh
# Sourced by deb.sh and rpm.sh: who answers for the packages, and the time that their files bear. Neither is known here:
# the builder says the first, and the last commit the second.
kind=${0##*/} kind=${kind%.sh}
case ${MAINTAINER:-} in
?*" <"?*@?*">") ;;
*)
    echo "packages name who answers for them: make $kind MAINTAINER='Name <name@site>' (and SITE_URL= their home page)" >&2
    exit 2
    ;;
esac
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' slurm_gpumem/__init__.py)
export SOURCE_DATE_EPOCH version
