#!/bin/bash
# Become one host of the test bed: host.sh BED NAME COMMAND…, inside fresh mount and UTS namespaces of that host's
# network. A host has its own name, hosts file, users, /tmp and /dev/shm; it sees the paths listed in BED/paths.
set -euo pipefail
bed=$1 name=$2
shift 2
hostname "$name"
mount --make-rprivate /
ip link set lo up
# What is needed may lie below /tmp or below a home that is closed to the bed's users: set it aside, cover, put back.
number=0
while IFS= read -r path; do
    mkdir -p "$bed/aside/$number"
    mount --bind "$path" "$bed/aside/$number"
    number=$((number + 1))
done < "$bed/paths"
while IFS= read -r cover; do
    mount -t tmpfs -o mode=755,size=16m tmpfs "$cover"
done < "$bed/covers"
mkdir -p "$bed/hosts/$name/tmp"
chmod 1777 "$bed/hosts/$name/tmp"
mount --bind "$bed/hosts/$name/tmp" /tmp
number=0
while IFS= read -r path; do
    mkdir -p "$path"
    mount --bind "$bed/aside/$number" "$path"
    number=$((number + 1))
done < "$bed/paths"
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
for file in hosts passwd group; do
    own=$bed/etc/$file.$name
    [ -e "$own" ] || own=$bed/etc/$file
    mount --bind "$own" "/etc/$file"
done
if [ -e "$bed/etc/folder" ]; then
    mount --bind "$bed/etc/only-here" "$(cat "$bed/etc/folder")"
fi
if [ "${NEW_PID:-}" = yes ]; then
    mount -t proc proc /proc
fi
exec "$@"
