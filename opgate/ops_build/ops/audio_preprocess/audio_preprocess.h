#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(
    AudioPreprocess,
    "AudioPreprocess(data: u8[total], ends: i32[n]; sample_rate: int=16000, max_samples: int=9600000, "
    "min_samples: int=1, channel: {mean|first}=mean, "
    "resampler: {kaiser|sinc_interp_hann|soxr_hq}=kaiser, normalize: {none|peak|standard|lufs}=none, loudness: "
    "float=-23) "
    "-> (pcm: f32[n,t<=max_samples], length: i32[n], rate: i32[n], status: i32[n])",
    "Decodes sounds of any kind and rate to rows of samples of one rate, as long as the longest; gives a status per "
    "row.")
