#pragma once

#include <algorithm>
#include <string>

#include "kernel_toolkit/op.h"

OPGATE_OP(RotaryEmbedding,
          "<T: f16|bf16|f32> RotaryEmbedding(x: T[...], cos_cache: T[*], sin_cache: T[*], position_ids?: i64[b,s]; "
          "interleaved: bool=false, num_heads: int=0, rotary_embedding_dim: int=0) -> (y: T[...])",
          "Rotates the pairs of numbers of each head by the angles of its position, as ONNX's operator does.")

namespace opgate::ops::rotary_embedding {

/// Where the heads lie in x, and how much of each is rotated.
struct Layout {
  std::int64_t batch = 0, heads = 0, sequence = 0, head_size = 0;
  std::int64_t rotated = 0;                       ///< the first numbers of a head, an even number
  std::int64_t head_step = 0, sequence_step = 0;  ///< between neighbours, in elements
  std::int64_t positions = 0;                     ///< rows of the caches

  OPGATE_HOST_DEVICE std::int64_t half() const { return rotated / 2; }
  /// Where the head of a token begins. Tokens are batch x sequence.
  OPGATE_HOST_DEVICE std::int64_t begin(std::int64_t token, std::int64_t head) const {
    return token / sequence * heads * sequence * head_size + head * head_step + token % sequence * sequence_step;
  }

  /// Refuses shapes that don't fit one another.
  static Status of(const Inputs& in, const Attributes& attributes, Layout& layout) {
    OPGATE_RETURN_IF_ERROR(of_x(in["x"], attributes, layout));
    const std::int64_t given = attributes.integer("rotary_embedding_dim");
    layout.rotated = given == 0 ? layout.head_size : given;
    if (layout.rotated > layout.head_size)
      return attributes.refuse("rotary_embedding_dim", "at most the head size " + std::to_string(layout.head_size));
    if (layout.rotated % 2 != 0) {
      return Status::invalid("input 'x': expected an even head size, got " + std::to_string(layout.head_size) +
                             " in a tensor of shape " + dims_text(in["x"].dims()));
    }
    return check_caches(in, layout);
  }

 private:
  static Status of_x(const Tensor& x, const Attributes& attributes, Layout& layout) {
    layout.batch = x.rank() > 0 ? x.dim(0) : 0;
    if (x.rank() == 4) {
      layout.heads = x.dim(1);
      layout.sequence = x.dim(2);
      layout.head_size = x.dim(3);
      layout.head_step = layout.sequence * layout.head_size;
      layout.sequence_step = layout.head_size;
      return {};
    }
    if (x.rank() != 3) {
      return Status::invalid(
          "input 'x': expected [batch, heads, sequence, head size] or [batch, sequence, heads * head size], got a "
          "tensor of shape " +
          dims_text(x.dims()));
    }
    layout.heads = attributes.integer("num_heads");
    if (layout.heads < 1 || x.dim(2) % layout.heads != 0)
      return attributes.refuse("num_heads",
                               "a divisor of the hidden size " + std::to_string(x.dim(2)) + ", because x has 3 dims");
    layout.sequence = x.dim(1);
    layout.head_size = x.dim(2) / layout.heads;
    layout.head_step = layout.head_size;
    layout.sequence_step = x.dim(2);
    return {};
  }

  static Status check_caches(const Inputs& in, Layout& layout) {
    const Tensor &cos = in["cos_cache"], &sin = in["sin_cache"];
    const bool by_position = in.has("position_ids");
    layout.positions = by_position ? (cos.rank() > 0 ? cos.dim(0) : 0) : layout.batch * layout.sequence;
    const std::int64_t of_token[] = {layout.batch, layout.sequence, layout.half()};
    const std::int64_t of_position[] = {layout.positions, layout.half()};
    const auto expected = by_position ? std::span<const std::int64_t>(of_position) : of_token;
    for (const Tensor* cache : {&cos, &sin}) {
      if (std::ranges::equal(cache->dims(), expected)) continue;
      return Status::invalid("input '" + std::string(cache->name()) + "': expected shape " + dims_text(expected) +
                             (by_position ? " with position_ids" : " without position_ids") + ", got " +
                             dims_text(cache->dims()));
    }
    const std::int64_t tokens[] = {layout.batch, layout.sequence};
    if (by_position && !std::ranges::equal(in["position_ids"].dims(), tokens)) {
      return Status::invalid("input 'position_ids': expected shape " + dims_text(tokens) + ", got " +
                             dims_text(in["position_ids"].dims()));
    }
    return {};
  }
};

/// The `check` of both kernels.
struct Checked {
  static Status check(const Attributes& attributes, const KnownSizes&) {
    const std::int64_t rotated = attributes.integer("rotary_embedding_dim");
    if (rotated < 0 || rotated % 2 != 0) return attributes.refuse("rotary_embedding_dim", "an even number, 0 or more");
    if (attributes.integer("num_heads") < 0) return attributes.refuse("num_heads", "0 or more");
    return {};
  }
};

}  // namespace opgate::ops::rotary_embedding
