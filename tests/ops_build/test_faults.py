"""Writes faults into the kernels, one at a time. `opgate verify` must fail with each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opgate.ops_build.building.build import build
from opgate.ops_build.building.options import SOURCE, BuildOptions
from opgate.ops_build.op_table import read_table
from tests import PROJECT
from tests.conftest import silent, thorough
from tests.ops_build import cuda_faults
from tests.ops_build.faults import Fault

SLOW = thorough("the kernels compile anew for each fault")

FAULTS = [
    Fault("a lost remainder", "LeakyRelu", "op_call/kernel.h", "std::min(piece, count % pieces)", "0 * (count % pieces)"),
    Fault("a wrong constant", "Mish", "ops/mish/mish.h", "* (n / (n + V(2)))", "* (n / (n + V(1)))"),
    Fault("branches swapped", "LeakyRelu", "ops/leaky_relu/leaky_relu.h", "V(alpha) * x, x)", "x, V(alpha) * x)"),
    Fault("operands swapped", "MyAdd", "ops/my_add/my_add.h", "V(2) * a + b", "a + V(2) * b"),
    Fault("pixels' corners for their centres", "ImagePreprocess", "images/taps.h",
          "(i + 0.5) * step - 0.5", "i * step"),
    Fault("an offset of the letterbox off by one", "ImagePreprocess", "ops/image_preprocess/placement.h",
          "(height - scaled_height) / 2", "(height - scaled_height + 1) / 2"),
    Fault("a crop off its centre", "ImagePreprocess", "ops/image_preprocess/placement.h",
          "-images::half_even(size - room)", "-(size - room) / 2"),
    Fault("Pillow's passes in the other order", "ImagePreprocess", "ops/image_preprocess/exact_resize.cpp",
          "shorter > 2 * narrower", "shorter < narrower - 1000000"),
    Fault("a cubic of another sharpness", "ImagePreprocess", "ops/image_preprocess/opencv_taps.cpp",
          "a = -0.75f", "a = -0.5f"),
    Fault("channels' order ignored", "ImagePreprocess", "ops/image_preprocess/settings.h",
          "reversed ? 2 - k : k", "(reversed, k)"),
    Fault("a wrong tie", "DetectionPostprocess", "detection/greedy.h",
          "std::sort(begin, end);",
          "std::sort(begin, end, [](auto a, auto b) { return a >> 32 != b >> 32 ? a < b : a > b; });"),
    Fault("classes suppress one another", "DetectionPostprocess", "detection/greedy.h",
          "group = limits.class_agnostic ? 0 : of_class;", "group = 0;"),
    Fault("the class and the anchor exchanged", "DetectionPostprocess", "detection/greedy.h",
          "scores.by_anchor ? line * picture.classes + at", "false ? line * picture.classes + at"),
    Fault("the objectness of another anchor", "DetectionPostprocess", "detection/greedy.h",
          "scores.by_anchor ? line : begin + i", "scores.by_anchor ? line : i"),
    Fault("suppressed at the threshold itself", "DetectionPostprocess",
          "detection/greedy.h", "iou(block.boxes[i], box) > threshold", "iou(block.boxes[i], box) >= threshold"),
    Fault("a box over the limit of its class suppresses", "MultiClassNMS", "detection/greedy.h",
          "numbers[of_class] == limits.max_per_class) continue;", "numbers[of_class] == limits.max_per_class) { others.add(0, picture.box(anchor)); continue; }"),
    Fault("mirrored letters", "DrawBoundingBoxes", "ops/draw_bounding_boxes/band.h",
          "pixels >> (kGlyphWidth - 1 - column)", "pixels >> column"),
    Fault("the best box painted first", "DrawBoundingBoxes", "ops/draw_bounding_boxes/draw_bounding_boxes.cpp",
          "std::int64_t i = rows.k - 1; i >= 0; --i", "std::int64_t i = 0; i < rows.k; ++i"),
    Fault("a second block of boxes that forgets the first", "MultiClassNMS", "detection/greedy.h",
          "number = blocks_[at(number)].before", "number = -1"),
    Fault("three sides of a box", "NMSRotated", "detection/rotated.h", "side < 4; ++side", "side < 3; ++side"),
    Fault("the angle the other way", "NMSRotated", "detection/rotated.h", "clockwise ? box[4] : -box[4]", "clockwise ? -box[4] : box[4]"),
    Fault("labels ignored", "NMSRotated", "detection/greedy.h", "groups.empty() ? label : groups[static_cast<std::size_t>(anchor)]", "label"),
    Fault("the picture turned the other way", "RoiAlignRotated", "ops/roi_align_rotated/regions.h", "settings.clockwise ? roi[5] : -roi[5]", "settings.clockwise ? -roi[5] : roi[5]"),
    Fault("rows before the first that is needed", "RoiAlignRotated", "ops/roi_align_rotated/roi_align_rotated.cpp", "last_row < 0 ? 0 : first_row_ * size.width", "0"),
    Fault("a parent that doesn't grow to a text of the beam", "CTCBeamSearch", "ops/ctc_beam_search/ctc_beam_search.cpp", "place != kNone)\n        after.label", "false)\n        after.label"),
    Fault("a class twice without a blank between", "CTCBeamSearch", "ops/ctc_beam_search/ctc_beam_search.cpp", "label == label ? before.blank : before.all", "label == label ? before.all : before.all"),
    Fault("a text twice in the beam", "CTCBeamSearch", "ops/ctc_beam_search/ctc_beam_search.cpp", "if (marks_[at(label)] == mark_) continue;", ""),
    Fault("a label twice after a blank", "CTCGreedyDecode", "ops/ctc_greedy_decode/ctc_greedy_decode.cpp", "if (best.label != before && best.label != blank)", "if (best.label != blank)"),
    Fault("a limit that is not raised", "TopKLabels", "detection/best.h", "if (i == count || !(most > limit_)) return;", "if (i == count || !(most > limit_ + 1)) return;"),
    Fault("every block of columns computed from the first", "CornerPool", "ops/corner_pool/corner_pool.cpp", "h - 1 - i : i) * w + begin", "h - 1 - i : i) * w + begin % 512"),
    Fault("thinner outlines", "DrawPolygons", "ops/draw_polygons/draw_polygons.cpp", "static_cast<double>(rows.thickness) / 2", "static_cast<double>(rows.thickness) / 3"),
    Fault("weights ignored", "WeightedNMS", "ops/weighted_nms/weighted_nms.cpp", "picture.score_of(one) * picture.number_of(one, c)", "picture.number_of(one, c)"),
    Fault("the threshold itself kept", "SoftNMS", "ops/soft_nms/soft_nms.h", "if (iou < iou_threshold) return 1;", "if (iou <= iou_threshold) return 1;"),
    Fault("a limit that rises in the midst of its numbers", "TopKLabels", "detection/best.h",
          "if (values[i + at] > limit_) add(", "add("),
    Fault("a sum that is not scaled down", "TopKLabels", "ops/top_k_labels/top_k_labels.cpp", "if (sum != 0) sum *=", "if (sum < 0) sum *="),
    Fault("the letterbox not undone", "DetectionPostprocess", "ops/detection_postprocess/formula.h",
          "(value - geometry[2 + axis]) * geometry[axis]", "value * geometry[axis]"),
    Fault("a derivative without its second term", "MishBackward", "ops/mish/mish.h", "V(4) * x * (e + V(1))", "V(4) * (e + V(1))"),
    Fault("the sum not rounded before it is normalized", "RMSNorm", "kernel_toolkit/rows.h", "return wide_.read(total, length_);", "return to;"),
    Fault("a mean that is rounded", "LayerNorm", "kernel_toolkit/rows.h", "return ((x - shift) - rest) * scale;", "return (x - shift) * scale;"),
    Fault("the weights of the first group", "GroupNorm", "ops/group_norm/group_norm.cpp", "first = group % groups * channels", "first = 0 * channels"),
    Fault("the last sample only", "GroupNormBackward", "ops/group_norm_backward/group_norm_backward.cpp", "total += sums[", "total = sums["),
    Fault("a sum in place of a mean", "RoiAlignRotatedBackward", "ops/roi_align_rotated_backward/roi_align_rotated_backward.cpp", "static_cast<double>(region.samples())", "1.0"),
    Fault("the mean's own gradient lost", "LayerNormBackward", "norms/row_gradients.h", "static_cast<C>(plain / length)", "C(0)"),
    Fault("only the last chunk of rows counts", "RMSNormBackward", "norms/row_gradients.h", "chunk = 0; chunk < chunks", "chunk = chunks - 1; chunk < chunks"),
    Fault("a neighbour as near as the last one passed over", "KNNQuery", "points/tree.h",
          "limit_[query] = squared_distance_of<T>(worst_[query]);", "limit_[query] = squared_distance_of<T>(worst_[query]) * T(0.9999999);"),
    Fault("a bound that is too great", "KNNQuery", "points/tree.h", "b.low[axis] - a.high[axis]", "b.low[axis] - a.low[axis]"),
    Fault("the tree of another segment", "KNNQuery", "ops/knn_query/knn_query.cpp", "group >= queries.groups[tree + 1]", "group > queries.groups[tree + 1]"),
    Fault("a cell too few", "BallQuery", "ops/ball_query/grid.h", "last = wrapped(at[0] + 1, 0)", "last = wrapped(at[0], 0)"),
    Fault("a radius that counts itself", "BallQuery", "ops/ball_query/ball_query.cpp", "std::nextafter(call.ball.below, T(-1))", "call.ball.below"),
    Fault("a tie for the upper row", "FarthestPointSample", "ops/farthest_point_sample/buckets.h", "if (farthest_row_[bucket] > row) continue;", ""),
    Fault("a box that is too small", "FarthestPointSample", "ops/farthest_point_sample/buckets.h", "above = sample[axis] - high", "above = sample[axis] - low"),
    Fault("the queries' part of the gradient", "KNNQueryBackward", "ops/knn_query_backward/knn_query_backward.cpp",
          "if (self) sums[query + axis] -= value;", "if (self) sums[query + axis] += value;"),
    Fault("a missing neighbour that counts", "ThreeInterpolate", "ops/three_interpolate/three_interpolate.cpp", "if (idx[i] >= 0) rows", "if (idx[i] > 0) rows"),
    Fault("the last part of a long sum only", "ThreeInterpolateBackward", "ops/three_interpolate/weighted_rows.h", "total[i] += static_cast<double>(part[i])", "total[i] = static_cast<double>(part[i])"),
    Fault("bounds without the last points", "GridCluster", "ops/grid_cluster/grid_cluster.cpp", "from[i] < low[i] ? from[i] : low[i]", "low[i]"),
    Fault("a cell too few", "GridCluster", "ops/grid_cluster/formula.h", "plus(truncated((end - start) / size), 1)", "truncated((end - start) / size)"),
    Fault("the sum of one block only", "SegmentReduce", "reductions/rows.h", "total[i] = Op::combine(total[i], static_cast<A>(part[i]))", "total[i] = static_cast<A>(part[i])"),
    Fault("a NaN that doesn't win", "SegmentReduce", "reductions/formula.h", "(b > a) | (b != b)", "b > a"),
    Fault("no 0 where no row is", "ScatterReduce", "ops/scatter_reduce/scatter_reduce.cpp", "if (counts[row] == 0) totals[i] = 0;", ""),
    Fault("the rows of the output before", "ScatterReduce", "ops/scatter_reduce/scatter_reduce.cpp", "if (index[i] + 1 < size) ++end[index[i] + 1];", "++end[index[i]];"),
    Fault("each point of an interval in its own cell", "BevPoolV2", "ops/bev_pool_v2/rows.h", "std::fill(found + start, found + done, cell);", "std::copy(points.bev + start, points.bev + done, found + start);"),
    Fault("the last of equal depths only", "BevPoolV2Backward", "ops/bev_pool_v2_backward/bev_pool_v2_backward.cpp", "sums[terms.weights[i]] +=", "sums[terms.weights[i]] ="),
    Fault("values beyond the right edge", "MultiScaleDeformableAttention", "ops/multi_scale_deformable_attention/cpu.h", "(left < columns[i])", "(left <= columns[i])"),
    Fault("a slope without the level's height", "MultiScaleDeformableAttentionBackward", "ops/multi_scale_deformable_attention_backward/multi_scale_deformable_attention_backward.cpp", "slopes.y * corners.height()[s]", "slopes.y * corners.width()[s]"),
    Fault("the offsets of the first group", "DeformConv2d", "ops/deform_conv2d/deform_conv2d.cpp", "s.offset_group * g_.taps() + t", "t"),
    Fault("the mask's gradient with the mask", "DeformConv2dBackward", "ops/deform_conv2d_backward/deform_conv2d_backward.cpp", "above * (left * products[0]", "sample.factor * above * (left * products[0]"),
    Fault("truncated toward zero", "Voxelize", "ops/voxelize/formula.h", "floored = std::floor(", "floored = std::trunc("),
    Fault("a voxel behind the grid", "Voxelize", "ops/voxelize/formula.h", "floored > last_[axis] ? last_[axis] : floored", "floored"),
    Fault("points of a voxel counted once too often", "Voxelize", "ops/voxelize/voxelize.cpp", "static_cast<float>(sums[k] / divisor)", "static_cast<float>(sums[k] / (divisor + 1))"),
    Fault("a voxel more than the limit", "Voxelize", "ops/voxelize/voxelize.cpp", "firsts.begin() + (count - 1)", "firsts.begin() + count"),
    Fault("a NaN that is passed over", "Voxelize", "ops/voxelize/formula.h", "(b > a) | (b != b) ? b : a", "b > a ? b : a"),
    Fault("the last of equal voxels", "VoxelOfPoint", "ops/voxel_of_point/voxel_of_point.cpp", "if (slot.key == kNoVoxel) slot = {key, row};", "slot = {key, row};"),
    Fault("batch numbers of voxels unchecked", "VoxelOfPoint", "ops/voxel_of_point/voxel_of_point.h", "number >= 0 && number < voxelize::kBatches", "true"),
    Fault("regions that touch at sides alone", "DBPostprocess", "ops/db_postprocess/regions.h",
          "runs_[above].last + 1 < run.first", "runs_[above].last < run.first"),
    Fault("the root of another region", "DBPostprocess", "ops/db_postprocess/regions.h",
          "parents_[std::max(a, b)] = static_cast<std::int32_t>(std::min(a, b))", "parents_[b] = static_cast<std::int32_t>(a)"),
    Fault("the rectangle of the first side", "DBPostprocess", "ops/db_postprocess/rectangle.h", "area < least)", "area < least && i == 0)"),
    Fault("the last pixel of a row left out of the mean", "DBPostprocess", "ops/db_postprocess/db_postprocess.cpp",
          "sums[right + 1] - sums[left]", "sums[right] - sums[left]"),
    Fault("corners in the order of the rectangle", "DBPostprocess", "ops/db_postprocess/db_postprocess.cpp", "  order(corners);", ""),
    Fault("a crop turned with the clock", "PerspectiveCrop", "ops/perspective_crop/quad_map.h",
          "std::array{0.0, -down / w, 1 - (0.5 + down / 2) / w}", "std::array{0.0, down / w, (down / 2 - 0.5) / w}"),
    Fault("a parallelogram for a perspective", "PerspectiveCrop", "ops/perspective_crop/quad_map.h", "{g, k, 1}}", "{0, 0, 1}}"),
    Fault("columns behind a crop left as they were", "PerspectiveCrop", "ops/perspective_crop/perspective_crop.cpp",
          "row + k * plane + columns, 0.0f);", "row + k * plane + map.width, 0.0f);"),
    Fault("sides that are no multiples", "ImagePreprocess", "ops/image_preprocess/placement.h",
          "std::llrint(multiples) * multiple, multiple", "whole, multiple"),
    Fault("a matrix that is not inverted", "WarpAffine", "ops/warp_affine/warp_affine.h", "if (!inverted) return", "if (true) return"),
    Fault("the last column of the picture lost", "WarpAffine", "ops/warp_affine/warp_affine.cpp", "x >= 0 && x < width", "x >= 0 && x + 1 < width"),
    Fault("the upper of two equally near pixels", "ResizeNormalize", "images/taps.h", "* from - 1) /", "* from) /"),
    Fault("every picture computed from the first", "ResizeNormalize", "ops/resize_normalize/resize_normalize.cpp", "i / height", "0 * i"),
    Fault("one channel twice", "ResizeNormalize", "ops/resize_normalize/resize_normalize.cpp", "value(right + c)", "value(right)"),
    Fault("a sine of the other sign", "RotaryEmbedding", "ops/rotary_embedding/rotary_embedding.cpp", "y[i] = cos[i] * x[i] - sin[i]", "y[i] = cos[i] * x[i] + sin[i]"),
    Fault("a sigmoid of x", "Swish", "ops/swish/swish.h", "sigmoid(V(alpha) * x)", "sigmoid(x)"),
    Fault("a derivative without its second term", "SwishBackward", "ops/swish_backward/swish_backward.h", "s.value + z * s.value * s.complement", "s.value"),
    Fault("always the exact formula", "Gelu", "ops/gelu/gelu.h", '== "tanh"', '== "tan"'),
    Fault("the density twice", "GeluBackward", "ops/gelu_backward/gelu_backward.h", "x * gaussian(x)", "V(2) * x * gaussian(x)"),
    Fault("the sign lost", "Asinh", "kernel_toolkit/elementary.h", "std::copysign(select(a <= 3.40282347e38f, finite, a), x)", "select(a <= 3.40282347e38f, finite, a)"),
    Fault("the ceiling before the floor", "ClampedRelu", "ops/clamped_relu/clamped_relu.h", "select(positive > V(ceiling), V(ceiling), positive)", "select(x > V(ceiling), V(ceiling), positive)"),
    Fault("the weights of the classes swapped", "SigmoidFocalLoss", "ops/sigmoid_focal_loss/sigmoid_focal_loss.h", "V(alpha) * target + (V(1) - V(alpha)) * other", "V(alpha) * other + (V(1) - V(alpha)) * target"),
    Fault("a factor lost", "SigmoidFocalLossBackward", "ops/sigmoid_focal_loss_backward/sigmoid_focal_loss_backward.h", "slope + V(gamma) * (t.entropy * relative)", "slope + t.entropy * relative"),
    Fault("one scale for all channels", "FakeQuantize", "ops/fake_quantize/channels.h", "return row % channels_;", "return 0 * row;"),
    Fault("a gradient beyond the range", "FakeQuantizeBackward", "ops/fake_quantize_backward/fake_quantize_backward.h", "select(rounded > high, V(0), grad_y)", "grad_y"),
    Fault("a default that is not the signature's", "KNNQuery", "signature/walk.h", "evaluate(*dim.default_value, size)", "evaluate({}, size)"),
    Fault("an input that contradicts the signature", "KNNQuery", "signature/walk.h", "    if (algebra_.equal(*expected,", "    continue;\n    if (algebra_.equal(*expected,"),
    Fault("a symmetric window for a periodic one", "LogMelSpectrogram", "audio/spectrum.h",
          "periodic ? length : length - 1", "length - 1"),
    Fault("the next row in the padding", "LogMelSpectrogram", "ops/log_mel_spectrogram/log_mel_spectrogram.cpp",
          "length = lengths[row]", "length = t"),
    Fault("a value of the next window", "SlidingWindow", "ops/sliding_window/sliding_window.cpp",
          "const std::int64_t behind = in_block * step - begin;", "const std::int64_t behind = in_block * step - begin - 1;"),
    Fault("the first channel for all", "AudioPreprocess", "ops/audio_preprocess/audio_preprocess.cpp", "sound.read(settings.mix,", "sound.read(audio::Mix::first,"),
    Fault("a part that overlaps the next one", "AudioPreprocess", "ops/audio_preprocess/resampler.cpp", "begin_ += gone;", "begin_ += gone + 1;"),
    Fault("the first sample without preemphasis", "KaldiFbank", "ops/kaldi_fbank/kaldi_fbank.cpp", "(frame[0] - preemphasis * frame[0])", "frame[0]"),
    Fault("the edge of a row twice", "KaldiFbank", "ops/kaldi_fbank/kaldi_fbank.cpp", "2 * t - 1 - place", "std::max<std::int64_t>(0, 2 * t - 2 - place)"),
    Fault("a filter that is shifted by a step", "ResampleAudio", "audio/resampling.h",
          "(step < 0 ? -step : step)] / sum", "(std::min<std::int64_t>(half, step < 0 ? -step - 1 : step + 1))] / sum"),
    Fault("two frames of a lane not separated", "LogMelSpectrogram", "audio/spectra.h",
          "even_im = a.im - b.im", "even_im = a.im + b.im"),
    Fault("an alpha ignored", "DecodeImage", "images/codecs/webp_decoder.cpp", "over_background(pixel[c], pixel[3], background_)", "pixel[c]"),
    Fault("24 bits without their sign", "DecodeAudio", "audio/codecs/wav_sound.cpp", "static_cast<std::int8_t>(from[2]) * 65536", "from[2] * 65536"),
    Fault("the pad byte of a chunk forgotten", "DecodeAudio", "audio/codecs/wav_sound.cpp", "size + size % 2", "size"),
    Fault("columns for rows", "DecodePoints", "ops/decode_points/npy.cpp", "npy.by_column ? 1 : npy.columns", "npy.columns"),
    Fault("a property's place off by its size", "DecodePoints", "ops/decode_points/ply.cpp", "vertices_.offset[axis] = vertices_.bytes;", "vertices_.offset[axis] = vertices_.bytes + size_of(type);"),
    Fault("the quality ignored", "EncodeImage", "images/codecs/jpeg_encoder.cpp", "quality, TRUE", "50, TRUE"),
    Fault("the begin of a word without an end", "Tokenize", "text/models.cpp", "tokens.resize(before);", "if (before > tokens.size()) tokens.resize(before);"),
    Fault("the last of equal merges", "Tokenize", "text/bpe.cpp", "pairs[i].rank < pairs[best].rank", "pairs[i].rank <= pairs[best].rank"),
    Fault("unknown characters apart", "Tokenize", "text/unigram.cpp", "!path.empty() && path.back().id == unknown_", "false"),
    Fault("a piece whose bytes have tokens apart", "Tokenize", "text/unigram.cpp", "!= (i == 0 ? 0 : tokens[i - 1].range.end)) return;", "!= (i == 0 ? 0 : tokens[i - 1].range.end)) continue;"),
    Fault("offsets in bytes", "Tokenize", "text/tokenizer.cpp", "  count_characters(text, part);", "  if (text.empty()) count_characters(text, part);"),
    Fault("the odd token for the other text", "Tokenize", "text/tokenizer.cpp", "const bool swapped = first > second;", "const bool swapped = first >= second;"),
    Fault("half a character", "DetokenizeStream", "ops/detokenize_stream/detokenize_stream.cpp", "all.size() > before.size() && whole(all)", "all.size() > before.size()"),
    Fault("bytes that are no text", "Detokenize", "text/decoders.cpp", "parts.assign(1, repaired(bytes));", "parts.assign(1, bytes);"),
    Fault("a tail with its padding behind it", "FileEnds", "ops/file_ends/file_ends.cpp", "return found.last(std::min(found.size(), static_cast<std::size_t>(tail)));", "return found.first(std::min(found.size(), static_cast<std::size_t>(tail)));"),
    Fault("speech without hysteresis", "SpeechSegments", "ops/speech_segments/speech_segments.cpp", "static_cast<double>(threshold) - settings_.hysteresis", "static_cast<double>(threshold)"),
    Fault("pieces that all begin at 0", "SpeechSegments", "ops/speech_segments/speech_segments.cpp", "state_.samples = behind;", "state_.samples = before;"),
    Fault("notes that leave their neighbours", "NoteEvents", "ops/note_events/note_events.cpp", "if (pitch > 0) left(i, pitch - 1) = 0;", ""),
    Fault("a word that goes on over a delimiter", "CTCWords", "ops/ctc_words/ctc_words.cpp", "      open_ = false;\n", ""),
    Fault("a name that begins in another one", "TokenSpans", "ops/token_spans/token_spans.cpp", "tag(best.label).begins || ", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def sources() -> Path:
    """Copies the sources, so that the tests can write faults into the copy. Its build is kept for the next run."""
    copy = PROJECT / "build" / "faults" / "ops_build"
    for file in copy.rglob("*"):
        if file.is_file() and not (SOURCE / file.relative_to(copy)).is_file():
            file.unlink()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE, copy, dirs_exist_ok=True, ignore=ignored, copy_function=copy_changed)
    return copy


def copy_changed(source: str, target: str) -> None:
    """Copies a file that differs. It doesn't copy the modification time, because with it the file would look older than
    the object file of its last fault, and would not be compiled."""
    if not Path(target).is_file() or Path(source).read_bytes() != Path(target).read_bytes():
        shutil.copyfile(source, target)


def verify(sources: Path, *ops: str) -> subprocess.CompletedProcess[str]:
    options = BuildOptions(
        output=sources.parent / "build",
        ops=(sources / "ops",),
        source=sources,
        build_type="Debug",
        strict=False,  # a fault may leave a variable unused
        engines=("onnxruntime",),
        cuda="",
    )
    library = build(options, silent).libraries["onnxruntime"]
    command = [sys.executable, "-m", "opgate", "verify", *ops, "--library", str(library)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def test_every_op_has_a_fault(library: Path) -> None:
    assert {op.name for op in read_table(library)} <= {fault.op for fault in FAULTS}


def test_each_fault_has_its_place() -> None:
    """Sources change. A fault whose place is gone finds nothing any more."""
    for fault in (*FAULTS, *cuda_faults.FAULTS, *cuda_faults.SMALL, *cuda_faults.LARGE_FAULTS):
        assert (SOURCE / fault.file).read_text().count(fault.right) == 1, fault


@SLOW
def test_without_a_fault_all_is_green(sources: Path) -> None:
    finished = verify(sources, *{fault.op for fault in FAULTS})
    assert finished.returncode == 0, finished.stdout + finished.stderr


@SLOW
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.op}: {fault.name}")
def test_a_fault_turns_verify_red(sources: Path, fault: Fault) -> None:
    with fault.written_into(sources):
        finished = verify(sources, fault.op)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert f"{fault.op} " in finished.stdout and " 0 failed" not in finished.stdout
