#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(
    DecodePoints,
    "DecodePoints(data: u8[total], ends: i32[n]; max_points: int=1000000) "
    "-> (xyz: f32[p<=total/3+n,3], offset: i32[n], status: i32[n])",
    "Decodes point clouds, PLY or NPY files, to the points of all rows and where each row ends; gives a status per "
    "row.")
