#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(FileEnds,
          "FileEnds(data: u8[total], ends: i32[n]; head: int, tail: int=0, block: int=4096, strip: bool=false, "
          "pad: int=256, least: int=0) -> (values: i32[n,head+tail], status: i32[n])",
          "The first and the last bytes of files as numbers, padded where a file is short; gives a status per row.")
