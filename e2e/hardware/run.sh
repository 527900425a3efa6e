#!/bin/sh
# run.sh checks everything of Pitcrew that touches hardware, on this machine, in less than five minutes. It needs root, the driver and
# coreutils, and nothing else: no make, no Go, no network, no systemd.
#
#	./run.sh                                  writes hardware-result/: page.txt, result.json, dumps.tar.gz
#	./run.sh -out DIR -driver-root DIR        other folders; ./run.sh -h lists all flags
#
# exit 0 all is as expected, 1 something is not, 2 cannot tell, e.g. without a GPU
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
read -r machine glibc _ <"$here/needs" || exit 2
if [ "$(uname -m)" != "$machine" ]; then
	echo "run.sh: this kit is for $machine, and this machine is $(uname -m): run make hardware-kit on a machine like it" >&2
	exit 2
fi
has=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>/dev/null | head -n 1)
has=${has##* }
if [ -n "$has" ] && [ "$(printf '%s\n' "$has" "$glibc" | sort -V | head -n 1)" != "$glibc" ]; then
	echo "run.sh: glibc $has of this machine is too old: the checks that load NVIDIA's libraries need $glibc. The others run." \
		"In a container with a newer glibc and the driver, all of them do." >&2
fi
exec "$here/kit" "$@"
