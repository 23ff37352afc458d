#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(DecodeAudio,
          "DecodeAudio(data: u8[total], ends: i32[n]; samples: int, sample_rate: int=16000) "
          "-> (pcm: f32[n,samples], length: i32[n], rate: i32[n], status: i32[n])",
          "Decodes WAV, FLAC, MP3, Ogg Vorbis and Opus to rows of samples in [-1, 1], their channels averaged; gives a "
          "status per row.")
