#!/bin/bash
# First process of one real host. It starts in new mount, pid, uts, ipc and cgroup namespaces and in the host's
# network namespace, still seeing the machine's file system, and ends as the parent of sshd and dockerd.
#   $1 name   $2 base tree   $3 the host's directory (root.img docker.img seed/)   $4 services to start
set -eu
name=$1 base=$2 home=$3 services=$4

mount --make-rprivate /
mkdir -p "$home/disk" "$home/root"
mount -o loop "$home/root.img" "$home/disk"
mkdir -p "$home/disk/upper" "$home/disk/work"
mount -t overlay host-root -o "lowerdir=$base,upperdir=$home/disk/upper,workdir=$home/disk/work" "$home/root"
cp -a "$home/seed/." "$home/root/"
mkdir -p "$home/root/var/lib/docker" "$home/root/.machine"
if [ -e "$home/docker.img" ]; then
    # Docker's overlay2 driver cannot sit on an overlay: it gets a disk of its own, which can also be filled up.
    mount -o loop "$home/docker.img" "$home/root/var/lib/docker"
fi

cd "$home/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755,size=1m host-dev dev
mknod -m 666 dev/null c 1 3; mknod -m 666 dev/zero c 1 5; mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8; mknod -m 666 dev/urandom c 1 9; mknod -m 666 dev/tty c 5 0; mknod -m 644 dev/kmsg c 1 11
mkdir dev/pts dev/shm dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin; ln -s /proc/self/fd/1 dev/stdout; ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs -o mode=1777 host-shm dev/shm
mount -t mqueue mqueue dev/mqueue
mount -t tmpfs -o mode=755 host-run run
mount -t tmpfs -o mode=1777 host-tmp tmp
pivot_root . .machine

exec chroot . /bin/bash -s "$name" "$services" <<'INSIDE'
set -u
name=$1 services=$2
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
unset DOCKER_HOST
version1=$(awk '$3 == "cgroup" && $2 ~ "^/.machine/sys/fs/cgroup/" { n = split($2, part, "/"); print part[n] }' /proc/mounts)
umount -l /.machine
rmdir /.machine 2>/dev/null
# Control groups are mounted again inside the cgroup namespace: the host sees its own group as the root.
if [ -n "$version1" ]; then
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    for controller in $version1; do
        mkdir -p "/sys/fs/cgroup/$controller"
        case $controller in
            systemd) mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd ;;
            *) mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" ;;
        esac
    done
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    # Version 2: a group that hands controllers down may hold no process itself.
    mkdir -p /sys/fs/cgroup/init
    while read -r pid; do echo "$pid" > /sys/fs/cgroup/init/cgroup.procs; done < /sys/fs/cgroup/cgroup.procs 2>/dev/null
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control
    done 2>/dev/null
fi
hostname "$name"
mkdir -p /run/sshd /run/lock /run/host
ip link set lo up
rm -rf /var/lib/gpus/holders
mkdir -p /var/lib/gpus/holders
cat /proc/sys/kernel/random/uuid > /var/lib/gpus/boot
chmod 777 /var/lib/gpus /var/lib/gpus/holders
# Once as root: what Python compiles is kept, and everybody's later calls are quick.
if [ -e /etc/gpus.json ]; then PYTHONDONTWRITEBYTECODE= nvidia-smi -L >/dev/null 2>&1 & fi
echo ready > /run/host/ready
for service in $services; do systemctl start "$service"; done
exec tini -s -- sleep infinity
INSIDE
