#!/bin/sh
# Installs the system packages that a step needs, if it runs as root and apt-get is there. Otherwise prints the line to
# run as root, and fails.
# Usage: system-packages.sh venv|serve|test
#
# What tests can do without is installed too, as root. Otherwise its line is printed, and nothing fails.
set -eu

python=${PYTHON:-python3}
missing=""
wanted=""
need() { missing="$missing $1"; }
want() { wanted="$wanted $1"; }
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
serve | test)
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
    header libsndfile1-dev sndfile.h
    header libmpg123-dev mpg123.h
    header libogg-dev ogg/ogg.h
    header libsoxr-dev soxr.h
    header libonig-dev oniguruma.h
    header nlohmann-json3-dev nlohmann/json.hpp
    header libnghttp2-dev nghttp2/nghttp2.h
  else
    need libjpeg-dev
    need libpng-dev
    need libdeflate-dev
    need libwebp-dev
    need libsndfile1-dev
    need libmpg123-dev
    need libogg-dev
    need libsoxr-dev
    need libonig-dev
    need nlohmann-json3-dev
    need libnghttp2-dev
  fi
  if [ "$1" = test ]; then
    has ninja || need ninja-build
    if has_compiler; then header libgtest-dev gtest/gtest.h; else need libgtest-dev; fi
    # The tests make many builds, and most of them compile the same files of the core. The cache compiles each once.
    has ccache || want ccache
    has curl || want curl
    has git || want git
    # To run the services of docker-compose.yml, and to check the unit of systemd.
    has prometheus || want prometheus
    has ip || want iproute2
    has systemd-analyze || want systemd
    # The browser in which the console is tested.
    has chromium || want chromium
    # perf_analyzer is linked with it.
    ldconfig -p 2>/dev/null | grep -q libb64 || want libb64-0d
    # A browser for the tests of the console.
    has chromium || want chromium
    # A processor without AVX2 for the op library.
    has qemu-x86_64 || want qemu-user
  fi
  ;;
*)
  echo "usage: $0 venv|serve|test" >&2
  exit 2
  ;;
esac

[ -n "$missing$wanted" ] || exit 0
if has apt-get && [ "$(id -u)" = 0 ]; then
  export DEBIAN_FRONTEND=noninteractive
  echo "installing system packages:$missing$wanted"
  apt-get update -qq || [ -z "$missing" ]
  [ -z "$missing" ] || apt-get install -y -qq --no-install-recommends $missing >/dev/null
  for package in $wanted; do
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
      echo "apt-get can't install $package: tests that need it are skipped"
  done
elif [ -n "$missing" ]; then
  echo "These system packages are missing. Run, as root: apt-get install -y --no-install-recommends$missing$wanted" >&2
  exit 1
else
  echo "Tests that need these system packages are skipped. As root: apt-get install -y --no-install-recommends$wanted" >&2
fi
