#!/bin/bash
# made_driver.sh COMMAND...: run a command where two NVIDIA GPUs seem to be, in a mount namespace of its own.
# What slurmd's AutoDetect=nvidia reads is made up: /proc/driver/nvidia, the PCI devices, /dev/nvidia0 and 1.
set -e
if [ "$1" != inside ]; then
    exec unshare --mount --propagation private "$0" inside "$@"
fi
shift
devices=$(mktemp -d)
mount -t tmpfs tmpfs "$devices"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$devices"
cp -a /dev/tty[0-9]* "$devices" 2>/dev/null || true
ln -s /proc/self/fd "$devices/fd"
mkdir -m 1777 "$devices/shm"
for number in 0 1; do
    mknod -m 666 "$devices/nvidia$number" c 195 "$number"
done
mount --bind "$devices" /dev
umount "$devices"
rmdir "$devices"
mount -t tmpfs tmpfs /proc/driver
mount -t tmpfs tmpfs /sys/bus/pci/drivers
for number in 0 1; do
    bus=0000:0$((number + 7)):00.0
    mkdir -p "/proc/driver/nvidia/gpus/$bus" "/sys/bus/pci/drivers/nvidia/$bus"
    echo 0-1 >"/sys/bus/pci/drivers/nvidia/$bus/local_cpulist"
    printf '%s: \t %s\n' Model 'NVIDIA A100-SXM4-40GB' 'GPU UUID' "GPU-8932f937-d72c-4106-c12f-20bd9faed9f$number" \
        'Bus Location' "$bus" 'Device Minor' "$number" >"/proc/driver/nvidia/gpus/$bus/information"
done
exec "$@"
