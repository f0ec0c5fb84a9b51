#!/bin/sh
# The first process on the guest kernel: makes a small machine, runs ./command, and says how it ended.
# The kernel hands TELAIO_GUEST_FOLDER over; what is written there reaches the host, and nothing else does:
# ./machine sees to that, and to what else this kind of machine needs.

folder=$TELAIO_GUEST_FOLDER
export PATH="$folder/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export HOME=/run/tmp TMPDIR=/run/tmp

prepare() {
    mount -t proc proc /proc &&
        mount -t sysfs sysfs /sys &&
        mount -t tmpfs tmpfs /run &&
        mkdir -p /run/tmp "$folder" &&
        . "$folder/machine" &&
        echo "$folder/bin/modprobe" >/proc/sys/kernel/modprobe &&
        modprobe ipv6 &&
        ip link set lo up
}

if prepare; then
    cd /run/tmp
    sh "$folder/command" >"$folder/stdout" 2>"$folder/stderr" </dev/null
    echo $? >>"$folder/outcome"
fi
echo o >/proc/sysrq-trigger
# The kernel powers off in its own time, and its first process must not end before.
exec sleep 60
