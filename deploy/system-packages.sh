#!/bin/sh
# Installs the system packages that a step needs, if it runs as root and apt-get is there. Otherwise prints the line to
# run as root, and fails.
# Usage: system-packages.sh venv|serve|test|ci
set -eu

python=${PYTHON:-python3}
missing=""
need() { missing="$missing $1"; }
has() { command -v "$1" >/dev/null 2>&1; }
# CXX may be a command with arguments, such as ccache g++.
has_compiler() { has ${CXX:-g++}; }
# The native modules of the gateway are compiled against the headers of this Python.
python_header() {
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    need python3-dev
}
header() { printf '#include <%s>\n' "$2" | ${CXX:-g++} -x c++ -E -include cstdio - >/dev/null 2>&1 || need "$1"; }

case $1 in
venv)
  has "$python" || need python3
  "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || need python3-venv
  ;;
serve | test | ci)
  has_compiler || need g++
  has cmake || need cmake
  # What CMake builds with. Debian's cmake doesn't bring it.
  has ninja || has make || need make
  python_header
  if has_compiler; then
    header libjpeg-dev jpeglib.h
    header libpng-dev png.h
    header libdeflate-dev libdeflate.h
    header libwebp-dev webp/decode.h
    header libnghttp2-dev nghttp2/nghttp2.h
  else
    need libjpeg-dev
    need libpng-dev
    need libdeflate-dev
    need libwebp-dev
    need libnghttp2-dev
  fi
  if [ "$1" != serve ]; then
    has ninja || need ninja-build
    if has_compiler; then header libgtest-dev gtest/gtest.h; else need libgtest-dev; fi
  fi
  if [ "$1" = ci ]; then
    has ccache || need ccache
    # To run the services of docker-compose.yml, and to check the unit of systemd.
    has prometheus || need prometheus
    has ip || need iproute2
    # perf_analyzer is linked with it.
    ldconfig -p | grep -q libb64 || need libb64-0d
    has systemd-analyze || need systemd
    # A processor without AVX2 for the op library.
    has qemu-x86_64 || need qemu-user
  fi
  ;;
*)
  echo "usage: $0 venv|serve|test|ci" >&2
  exit 2
  ;;
esac

[ -n "$missing" ] || exit 0
line="apt-get install -y --no-install-recommends$missing"
if has apt-get && [ "$(id -u)" = 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $line
else
  echo "These system packages are missing. Run, as root: $line" >&2
  exit 1
fi
