#pragma once

#include "core/op.h"

OPGATE_OP(
    DetectionPostprocess,
    "DetectionPostprocess(head: f32[n,c,a], geometry?: f32[n,6]; score_threshold: float=0.25, "
    "iou_threshold: float=0.5, max_detections: int=100, box_format: {cxcywh|xyxy}=cxcywh) "
    "-> (boxes: f32[n,max_detections,4], scores: f32[n,max_detections], labels: i32[n,max_detections], count: i32[n])",
    "A detector's head to boxes in source pixels: score threshold, greedy NMS in each class, the best of all.")
