#!/bin/sh
# Installs the Python packages that the tests need, and the engines whose ops they test. An engine that pip doesn't find for
# this machine is left out with a line that says so, and VENV/.left-out names it.
# Usage: test-packages.sh VENV EXTRAS ENGINES
set -eu

venv=$1 extras=$2 engines=$3
# Python compiles a file when it first imports it. The tests import few of the files that pip would compile.
install() { "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check "$@"; }

# The default build of PyTorch brings gigabytes of CUDA's libraries.
case " $engines " in
*" torch "*)
  "$venv/bin/python" -c 'import torch' 2>/dev/null || install 'torch==2.13.0+cpu' 2>/dev/null ||
    echo "pip finds no CPU build of PyTorch, so its default build comes, with 3 GB of CUDA's libraries. PIP_EXTRA_INDEX_URL names an index with CPU builds."
  ;;
esac

: >"$venv/.left-out"
all=$(echo "$extras $engines" | tr ' ' ,)
if ! install --editable ".[$all]" 2>/dev/null; then
  install --editable ".[$extras]"
  for engine in $engines; do
    install --editable ".[$extras,$engine]" || {
      echo "pip can't install the extra $engine here: its tests are skipped"
      echo "$engine" >>"$venv/.left-out"
    }
  done
fi
