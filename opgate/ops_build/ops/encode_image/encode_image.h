#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(EncodeImage,
          "EncodeImage(image: u8[h,w,c]; format: {jpeg|png}=jpeg, quality: int=90) "
          "-> (data: u8[size<=65536+8*(h+16)*(w+16)])",
          "Encodes grey or RGB pixels as a JPEG or PNG.")
