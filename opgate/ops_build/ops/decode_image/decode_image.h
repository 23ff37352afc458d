#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(DecodeImage, "DecodeImage(data: u8[size]; max_pixels: int=50000000) -> (image: u8[h<=65535,w<=65535,3])",
          "Decodes a JPEG, PNG, WebP, BMP or GIF to upright RGB pixels.")
