#pragma once

#include "core/op.h"

OPGATE_OP(
    Voxelize,
    "Voxelize(points: f32[n,c], size: f32[3], range?: f32[6]) "
    "-> (features: f32[v<=n,c], coords: i32[v,3], counts: i32[v])",
    "Points gathered into the voxels of a grid: the mean of each occupied voxel's points, its number, their count.")
