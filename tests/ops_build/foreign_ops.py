"""The ops of other projects as their exports have them: each is a function of PyTorch whose `symbolic` writes the node, and
whose `forward` computes the op by a formula of its own."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from shapely import affinity, box
from torch.autograd import Function


class KNNQuery(Function):
    """pointops' knnquery as tutorials export it: nsample is the first input, a constant."""

    @staticmethod
    def forward(ctx, nsample, xyz, offset, new_xyz=None, new_offset=None):
        queries = xyz if new_xyz is None else new_xyz
        ends, query_ends = offset.tolist(), (offset if new_offset is None else new_offset).tolist()
        idx, dist, start, first = [], [], 0, 0
        for end, last in zip(ends, query_ends, strict=True):
            d2, order = torch.cdist(queries[first:last].double(), xyz[start:end].double()).topk(nsample, largest=False)
            idx.append(order + start)
            dist.append(d2)
            start, first = end, last
        return torch.cat(idx).int(), torch.cat(dist).float()

    @staticmethod
    def symbolic(g, nsample, xyz, offset, new_xyz=None, new_offset=None):
        inputs = [tensor for tensor in (new_xyz, new_offset) if tensor is not None]
        count = g.op("Constant", value_t=torch.tensor(nsample))
        return g.op("custom::knnquery", count, xyz, offset, *inputs, outputs=2)


class FirstKNNQuery(KNNQuery):
    """The first versions of pointops have the queries before the ends."""

    @staticmethod
    def symbolic(g, nsample, xyz, offset, new_xyz, new_offset):
        count = g.op("Constant", value_t=torch.tensor([nsample], dtype=torch.int32))
        return g.op("custom::knnquery", count, xyz, new_xyz, offset, new_offset, outputs=2)


def grid(pos, size, start=None, end=None):
    """torch_cluster's grid."""
    start = pos.min(0).values if start is None else start
    end = pos.max(0).values if end is None else end
    cells = ((end - start) / size).trunc().long() + 1
    strides = torch.cat([torch.ones(1, dtype=torch.long), cells.cumprod(0)[:-1]])
    return (((pos - start) / size).trunc().long() * strides).sum(1)


class Grid(Function):
    @staticmethod
    def forward(ctx, *inputs):
        return grid(*inputs)

    @staticmethod
    def symbolic(g, pos, size, start=None, end=None):
        return g.op("custom::torch_cluster_grid", pos, size, *[t for t in (start, end) if t is not None])


class GridSampler(Function):
    """mmdeploy's grid_sampler."""

    @staticmethod
    def forward(ctx, x, grid, mode, padding, align_corners):
        return torch.grid_sampler(x, grid, mode, padding, bool(align_corners))

    @staticmethod
    def symbolic(g, x, grid, mode, padding, align_corners):
        numbers = {"interpolation_mode_i": mode, "padding_mode_i": padding, "align_corners_i": align_corners}
        return g.op("mmdeploy::grid_sampler", x, grid, **numbers)


class CornerPool(Function):
    @staticmethod
    def forward(ctx, x, mode):
        axis, flipped = {0: (2, True), 1: (2, False), 2: (3, True), 3: (3, False)}[mode]
        x = x.flip(axis) if flipped else x
        y = x.cummax(axis).values
        return y.flip(axis) if flipped else y

    @staticmethod
    def symbolic(g, x, mode):
        return g.op("mmcv::MMCVCornerPool", x, mode_i=mode)


class ModulatedDeformConv2d(Function):
    domain = "mmdeploy::MMCVModulatedDeformConv2d"

    @staticmethod
    def forward(ctx, x, offset, mask, weight, bias, stride, padding, dilation, groups, deform_groups):
        """Each element of the filters is a picture of samples, weighted and added up."""
        n, _, h, w = x.shape
        out_channels, _, kh, kw = weight.shape
        oh, ow = offset.shape[2:]
        offset = offset.view(n, deform_groups, kh * kw, 2, oh, ow)
        mask = mask.view(n, deform_groups, kh * kw, oh, ow)
        rows, columns = torch.meshgrid(torch.arange(oh), torch.arange(ow), indexing="ij")
        y = torch.zeros(n, out_channels, oh, ow)
        for k in range(kh * kw):
            sampled = []
            for group, part in enumerate(x.chunk(deform_groups, 1)):
                down = rows * stride[0] - padding[0] + k // kw * dilation[0] + offset[:, group, k, 0]
                right = columns * stride[1] - padding[1] + k % kw * dilation[1] + offset[:, group, k, 1]
                places = torch.stack([(2 * right + 1) / w - 1, (2 * down + 1) / h - 1], -1)
                values = F.grid_sample(part, places, padding_mode="zeros", align_corners=False)
                sampled.append(values * mask[:, group, k, None])
            samples = torch.cat(sampled, 1)
            y += F.conv2d(samples, weight[:, :, k // kw, k % kw, None, None], groups=groups)
        return y if bias is None else y + bias[:, None, None]

    @classmethod
    def symbolic(cls, g, x, offset, mask, weight, bias, stride, padding, dilation, groups, deform_groups):
        inputs = [x, offset, mask, weight, *([] if bias is None else [bias])]
        settings = {"stride_i": stride, "padding_i": padding, "dilation_i": dilation}
        return g.op(cls.domain, *inputs, **settings, groups_i=groups, deform_groups_i=deform_groups)


class ModulatedDeformConv2dTRT(ModulatedDeformConv2d):
    domain = "ModulatedDeformableConv2dTRT"


class RoIAlignRotated(Function):
    @staticmethod
    def forward(ctx, x, rois, height, width, scale, samples, aligned, clockwise):
        out = torch.zeros(len(rois), x.shape[1], height, width)
        for r, (picture, *sides, turn) in enumerate(rois.tolist()):
            cx, cy, w, h = (side * scale for side in sides)
            cx, cy = (cx - 0.5, cy - 0.5) if aligned else (cx, cy)
            w, h = (w, h) if aligned else (max(w, 1.0), max(h, 1.0))
            angle = -turn if clockwise else turn
            for i, j in np.ndindex(height, width):
                total = torch.zeros(x.shape[1])
                for a, b in np.ndindex(samples, samples):
                    v = -h / 2 + (i + (a + 0.5) / samples) * h / height
                    u = -w / 2 + (j + (b + 0.5) / samples) * w / width
                    row = cy + v * np.cos(angle) - u * np.sin(angle)
                    column = cx + v * np.sin(angle) + u * np.cos(angle)
                    total += _interpolated(x[int(picture)], row, column)
                out[r, :, i, j] = total / samples**2
        return out

    @staticmethod
    def symbolic(g, x, rois, height, width, scale, samples, aligned, clockwise):
        settings = {"output_height_i": height, "output_width_i": width, "spatial_scale_f": scale}
        flags = {"sampling_ratio_i": samples, "aligned_i": aligned, "clockwise_i": clockwise}
        return g.op("mmdeploy::MMCVRoIAlignRotated", x, rois, **settings, **flags)


def _interpolated(picture, row, column):
    height, width = picture.shape[1:]
    if not (-1 <= row <= height and -1 <= column <= width):
        return torch.zeros(picture.shape[0])
    row, column = min(max(row, 0), height - 1), min(max(column, 0), width - 1)
    top, left = int(row), int(column)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, across = row - top, column - left
    upper = picture[:, top, left] * (1 - across) + picture[:, top, right] * across
    lower = picture[:, bottom, left] * (1 - across) + picture[:, bottom, right] * across
    return upper * (1 - down) + lower * down


def _rectangle(cx, cy, w, h, angle):
    return affinity.translate(
        affinity.rotate(box(-w / 2, -h / 2, w / 2, h / 2), angle, (0, 0), use_radians=True), cx, cy
    )


def _kept(boxes, scores, iou_threshold, score_threshold):
    shapes = [_rectangle(*row) for row in boxes.tolist()]
    kept: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        overlaps = (shapes[i].intersection(shapes[k]).area / shapes[i].union(shapes[k]).area for k in kept)
        if scores[i] > score_threshold and not any(iou > iou_threshold for iou in overlaps):
            kept.append(i)
    return kept


class NMSRotated(Function):
    """mmdeploy's node: rows of (picture, class, box)."""

    @staticmethod
    def forward(ctx, boxes, scores, iou_threshold, score_threshold):
        rows = [
            [picture, label, row]
            for picture, label in np.ndindex(*scores.shape[:2])
            for row in _kept(boxes[picture], scores[picture, label], iou_threshold, score_threshold)
        ]
        return torch.tensor(rows, dtype=torch.long).reshape(-1, 3)

    @staticmethod
    def symbolic(g, boxes, scores, iou_threshold, score_threshold):
        settings = {"iou_threshold_f": iou_threshold, "score_threshold_f": score_threshold}
        return g.op("mmdeploy::NMSRotated", boxes, scores, **settings)


class FlatNMSRotated(Function):
    """mmcv's node: the rows that are kept."""

    @staticmethod
    def forward(ctx, boxes, scores, iou_threshold):
        return torch.tensor(_kept(boxes, scores, iou_threshold, -np.inf))

    @staticmethod
    def symbolic(g, boxes, scores, iou_threshold):
        return g.op("mmcv::NMSRotated", boxes, scores, iou_threshold_f=iou_threshold)


class SoftNMS(Function):
    @staticmethod
    def forward(ctx, boxes, scores, iou_threshold, sigma, min_score, method, offset):
        boxes, scores = boxes.double(), scores.double().clone()
        left, rows, indices = list(range(len(scores))), [], []
        while left:
            best = max(left, key=lambda i: (scores[i], -i))
            left.remove(best)
            rows.append([*boxes[best].tolist(), float(scores[best])])
            indices.append(best)
            for i in left:
                corners = torch.maximum(boxes[i, :2], boxes[best, :2]), torch.minimum(boxes[i, 2:], boxes[best, 2:])
                common = (corners[1] - corners[0] + offset).clamp(min=0).prod()
                areas = [(boxes[k, 2:] - boxes[k, :2] + offset).prod() for k in (i, best)]
                iou = float(common / (sum(areas) - common))
                weights = (
                    float(iou < iou_threshold),
                    1 - iou if iou >= iou_threshold else 1,
                    np.exp(-(iou**2) / sigma),
                )
                scores[i] *= weights[method]
            left = [i for i in left if scores[i] >= min_score]
        return torch.tensor(rows).float(), torch.tensor(indices)

    @staticmethod
    def symbolic(g, boxes, scores, iou_threshold, sigma, min_score, method, offset):
        floats = {"iou_threshold_f": iou_threshold, "sigma_f": sigma, "min_score_f": min_score}
        numbers = {"method_i": method, "offset_i": offset}
        return g.op("mmcv::SoftNonMaxSuppression", boxes, scores, **floats, **numbers, outputs=2)


class BevPoolV2(Function):
    domain = "mmdeploy::bev_pool_v2"

    @staticmethod
    def forward(ctx, depth, feat, ranks_depth, ranks_feat, ranks_bev, starts, lengths, height, width):
        cells = torch.zeros(height * width, feat.shape[-1])
        counted = torch.cat([torch.arange(s, s + n) for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
        points = depth.flatten()[ranks_depth[counted].long()][:, None] * feat.flatten(0, 2)[ranks_feat[counted].long()]
        return cells.index_add_(0, ranks_bev[counted].long(), points).view(1, height, width, -1)

    @classmethod
    def symbolic(cls, g, depth, feat, ranks_depth, ranks_feat, ranks_bev, starts, lengths, height, width):
        ranks = (ranks_depth, ranks_feat, ranks_bev, starts, lengths)
        return g.op(cls.domain, depth, feat, *ranks, out_height_i=height, out_width_i=width)


class OtherBevPoolV2(BevPoolV2):
    domain = "bev::bev_pool_v2"


def attention(value, shapes, locations, weights):
    """Deformable attention in plain PyTorch, as mmcv's documentation of its function describes it."""
    b, _, heads, dims = value.shape
    _, queries, _, levels, points, _ = locations.shape
    parts = value.split([h * w for h, w in shapes], dim=1)
    grids = 2 * locations - 1
    sampled = []
    for level, (h, w) in enumerate(shapes):
        pictures = parts[level].flatten(2).transpose(1, 2).reshape(b * heads, dims, h, w)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(F.grid_sample(pictures, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    weights = weights.transpose(1, 2).reshape(b * heads, 1, queries, levels * points)
    total = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1).view(b, heads * dims, queries)
    return total.transpose(1, 2).contiguous()


class DeformableAttention(Function):
    @staticmethod
    def forward(ctx, value, shapes, starts, locations, weights):
        return attention(value, shapes.tolist(), locations, weights)

    @staticmethod
    def symbolic(g, *inputs):
        return g.op("mmdeploy::MMCVMultiScaleDeformableAttention", *inputs, im2col_step_i=64)


class DeformableAttentionPlugin(Function):
    """TensorRT's plugin keeps the heads apart."""

    @staticmethod
    def forward(ctx, value, shapes, starts, locations, weights):
        return attention(value, shapes.tolist(), locations, weights).unflatten(2, value.shape[2:])

    @staticmethod
    def symbolic(g, *inputs):
        return g.op("TRT::MultiscaleDeformableAttnPlugin_TRT", *inputs, plugin_version_s="1", plugin_namespace_s="")


class DeformableAttentionTRT(Function):
    """BEVFormer_tensorrt's plugin: reference points and offsets in pixels, and the softmax of the weights is part of it."""

    @staticmethod
    def forward(ctx, value, shapes, points, offsets, weights):
        b, queries, heads, _ = offsets.shape
        levels, pairs = len(shapes), points.shape[-1] // 2
        offsets = offsets.view(b, queries, heads, levels, -1, pairs, 2)
        scale = torch.stack([shapes[:, 1], shapes[:, 0]], -1).float().view(levels, 1, 1, 2)
        places = (points.view(b, queries, 1, 1, 1, pairs, 2) + offsets / scale).flatten(4, 5)
        softmax = weights.flatten(3).softmax(-1).view(b, queries, heads, levels, -1)
        return attention(value, shapes.tolist(), places, softmax).unflatten(2, value.shape[2:])

    @staticmethod
    def symbolic(g, *inputs):
        return g.op("MultiScaleDeformableAttnTRT", *inputs)


class GraphcoreLeakyRelu(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        return torch.where(x >= 0, x, alpha * x)

    @staticmethod
    def symbolic(g, x, alpha):
        return g.op("ai.graphcore::LeakyRelu", x, alpha_f=alpha)
