#!/bin/sh
# Brings the headers that engines have in none of their packages, where they can be had. Tests that need others are skipped.
# Usage: test-headers.sh VENV FOLDER
set -eu

venv=$1 folder=$2
mkdir -p "$folder"

# A package has the headers of TensorRT 10.14.
if [ -z "${OPGATE_TENSORRT_INCLUDE:-}" ] && [ ! -d "$folder/TensorRT/include" ]; then
  got=$(mktemp -d)
  if "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$got" kernel-lens==2.0.1 2>/dev/null; then
    "$venv/bin/python" -m zipfile -e "$got"/kernel_lens-*.whl "$got"
    mkdir -p "$folder/TensorRT"
    mv "$got/kernel_lens/include/tensorrt" "$folder/TensorRT/include"
  else
    echo "TensorRT's headers are out of reach: its plugins are not built, and their tests are skipped"
  fi
  rm -rf "$got"
fi

# Those of TensorRT 11 are in its open sources, and those of LiteRT in its own.
if [ ! -d "$folder/TensorRT-11" ]; then
  { timeout 60 git clone --quiet --depth 1 --filter=blob:none --sparse https://github.com/NVIDIA/TensorRT "$folder/TensorRT.new" &&
    timeout 60 git -C "$folder/TensorRT.new" sparse-checkout set include &&
    mv "$folder/TensorRT.new" "$folder/TensorRT-11"; } 2>/dev/null || {
    rm -rf "$folder/TensorRT.new"
    echo "TensorRT 11's headers are out of reach: the tests that call its plugins as 11 does are skipped"
  }
fi
if [ ! -d "$folder/LiteRT" ]; then
  { timeout 60 git clone --quiet --depth 1 --filter=blob:none --sparse https://github.com/google-ai-edge/LiteRT "$folder/LiteRT.new" &&
    timeout 60 git -C "$folder/LiteRT.new" sparse-checkout set tflite/core tflite/converter/core &&
    mv "$folder/LiteRT.new" "$folder/LiteRT"; } 2>/dev/null || {
    rm -rf "$folder/LiteRT.new"
    echo "LiteRT's headers are out of reach: its library is not built, and its tests are skipped"
  }
fi
