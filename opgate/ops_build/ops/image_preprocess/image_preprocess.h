#pragma once

#include "core/op.h"

OPGATE_OP(
    ImagePreprocess,
    "ImagePreprocess(data: u8[total], ends: i32[n]; height: int, width: int, pad: int=114, mean: float[3]=[0,0,0], "
    "std: float[3]=[1,1,1], order: {RGB|BGR}=RGB, max_pixels: int=50000000) "
    "-> (image: f32[n,3,height,width], geometry: f32[n,6], status: i32[n])",
    "Decodes JPEGs or PNGs to letterboxed, normalized planes; gives the geometry that maps boxes back and a status per "
    "row.")
