# Makes a root out of this machine's own, in namespaces of its own, and becomes systemd in it.
#
# Nothing outside changes: what is written lies in memory, /proc/sys and /sys cannot be written, and
# everything ends with this process. SHARED is seen as /srv/shared, PYTHON as /opt/python and PACKAGES
# as /opt/packages; CONSOLE is a file that takes what systemd says before its journal runs.
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$WORK"
mkdir "$WORK/upper" "$WORK/work" "$WORK/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root"
cd "$WORK/root"

mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for node in null zero full random urandom tty; do
  touch "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
for node in console kmsg; do
  touch "dev/$node"
  mount --bind "$CONSOLE" "dev/$node"
done
mkdir -p srv/shared opt/python opt/packages
mount --bind "$SHARED" srv/shared
mount --bind "$PYTHON" opt/python
mount --bind "$PACKAGES" opt/packages
mount -o remount,bind,ro opt/python
mount -o remount,bind,ro opt/packages

# Where Python looks for its own library may be a folder that the units hide.
echo /opt/python/lib >etc/ld.so.conf.d/00-python.conf
/sbin/ldconfig -r .

# None of this machine's services, and nothing that is for the kernel or for disks.
rm -rf etc/systemd/system etc/aegaeon var/lib/aegaeon opt/aegaeon var/log/journal
mkdir -p etc/systemd/system
: >etc/machine-id
: >etc/fstab
for unit in dev-hugepages.mount dev-mqueue.mount sys-fs-fuse-connections.mount \
  sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
  proc-sys-fs-binfmt_misc.automount systemd-binfmt.service systemd-modules-load.service \
  systemd-random-seed.service systemd-remount-fs.service systemd-sysctl.service \
  systemd-timesyncd.service systemd-udevd.service systemd-udev-trigger.service getty.target; do
  ln -s /dev/null "etc/systemd/system/$unit"
done

mkdir old
pivot_root . old
umount -l old
exec env -i container=aegaeon-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal-or-kmsg \
  --show-status=no </dev/null
