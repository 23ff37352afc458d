#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(SpeechSegments,
          "SpeechSegments(probabilities: f32[n,w], length: i32[n], thresholds?: f32[n], state?: f64[n,10], "
          "last?: i32[n]; step: int, rate: int, max_segments: int=1000, threshold: float=0.5, hysteresis: float=0.15, "
          "min_speech_ms: int=250, min_silence_ms: int=100, pad_ms: int=30) "
          "-> (segments: f32[n,max_segments,2], scores: f32[n,max_segments], count: i32[n], next_state??: f64[n,10], "
          "since??: f32[n])",
          "Where somebody speaks, in seconds, from the probability of speech in each window of a sound.")
