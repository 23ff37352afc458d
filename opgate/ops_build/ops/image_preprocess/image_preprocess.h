#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(
    ImagePreprocess,
    "ImagePreprocess(data: u8[total], ends: i32[n]; height: int, width: int, pad: int=114, mean: float[]=[0], "
    "std: float[]=[1], order: {RGB|BGR}=RGB, max_pixels: int=50000000, channels: int=3, "
    "fit: {letterbox|letterbox_start|stretch|crop|fit_height|multiples}=letterbox, shorter_side: int=0, "
    "filter: {fast|pil_nearest|pil_box|pil_bilinear|pil_hamming|pil_bicubic|pil_lanczos|cv_nearest|cv_linear|cv_area|"
    "cv_cubic|cv_lanczos4}=fast, scale: {unit|byte}=unit, multiple: int=32) "
    "-> (image: f32[n,channels,height,width], geometry: f32[n,6], status: i32[n])",
    "Decodes pictures to resized, normalized planes, as a model was trained on; gives the geometry that maps boxes "
    "back "
    "and a status per row.")
