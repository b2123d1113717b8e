#!/bin/sh
# Compile gpumem_end.c, beside this file, into libgpumem_end.so, which CUDA programs of shared jobs load: without it a
# job that ends may take its neighbours along (gpumem docs node, "Ends"). As root, on each GPU node; install.sh and
# the packages run it. A node without a compiler can have the library from another one of its architecture.
cd "$(dirname "$(readlink -f "$0")")" || exit 1
if ! compiler=$(command -v cc || command -v gcc); then
    echo "no C compiler: $PWD/libgpumem_end.so was not built, and a job that ends may take its neighbours along;" \
        "install gcc, then run $PWD/build_end.sh" >&2
    exit 1
fi
if "$compiler" -O2 -shared -fPIC -o libgpumem_end.so.new gpumem_end.c -ldl -lpthread; then
    chmod 755 libgpumem_end.so.new && exec mv libgpumem_end.so.new libgpumem_end.so
fi
rm -f libgpumem_end.so.new
echo "$compiler cannot compile $PWD/gpumem_end.c: a job that ends may take its neighbours along" >&2
exit 1
