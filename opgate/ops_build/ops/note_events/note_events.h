#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(
    NoteEvents,
    "NoteEvents(onsets: f32[n,t,p], frames: f32[n,t,p], length: i32[n], thresholds?: f32[n]; max_notes: int=2000, "
    "onset_threshold: float=0.5, frame_threshold: float=0.3, min_frames: int=11, tolerance: int=11, "
    "infer_onsets: bool=true, without_onsets: bool=true) "
    "-> (begin: i32[n,max_notes], end: i32[n,max_notes], pitch: i32[n,max_notes], amplitude: f32[n,max_notes], "
    "count: i32[n])",
    "The notes of several voices, from the probabilities that a pitch begins and that it sounds in each frame.")
