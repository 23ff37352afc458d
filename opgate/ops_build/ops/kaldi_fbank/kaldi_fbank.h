#pragma once

#include "kernel_toolkit/op.h"

OPGATE_OP(
    KaldiFbank,
    "KaldiFbank(pcm: f32[n,t], length?: i32[n]; sample_rate: int=16000, win_length: int=400, hop_length: int=160, "
    "n_mels: int=80, f_min: float=20, f_max: float=0, window: {povey|hamming|hanning|rectangular|blackman}=povey, "
    "snip_edges: int=1, remove_dc: bool=true, preemphasis: float=0.97, power: int=2, log: bool=true, "
    "use_energy: int=0, raw_energy: bool=true, energy_floor: float=0) "
    "-> (fbank: f32[n,snip_edges*max(0,1+(t-win_length)/hop_length)+(1-snip_edges)*((t+hop_length/2)/hop_length),"
    "n_mels+use_energy], frames?: i32[n])",
    "The filter banks of Kaldi: the logarithm of the energy of sound in bands, for frames that overlap.")
