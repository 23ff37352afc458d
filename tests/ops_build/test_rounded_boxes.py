"""Rotated boxes in floats never contradict those in f64, and nearly always decide."""

from __future__ import annotations

import subprocess
from pathlib import Path

from opgate.ops_build.building.options import SOURCE

#: Prints for each family of pairs: wrong verdicts, unknown ones, those that the IoU is greater, and all pairs.
PROGRAM = """#include <cstdio>
#include <cstdlib>
#include <random>
#include "detection/rotated.h"
using namespace opgate::detection;

std::mt19937_64 random_bits(1);
float uniform(double low, double high) {
  return static_cast<float>(std::uniform_real_distribution<double>(low, high)(random_bits));
}
float log_uniform(double low, double high) { return std::exp(uniform(std::log(low), std::log(high))); }

struct Pair {
  float a[5], b[5];
};

template <typename Make>
void run(const char* name, int count, const Make& make) {
  int wrong = 0, unknown = 0, greater = 0, all = 0;
  for (int i = 0; i < count; ++i) {
    const Pair pair = make();
    const RotatedBox a = rotated_box_of(pair.a, true), b = rotated_box_of(pair.b, true);
    const RoundedBox kept(a), other(b);
    const double exact = iou(a, b);
    for (const double threshold : {0.0, 0.1, 0.5, 0.9, 1.0, exact, std::nextafter(exact, 2.0)}) {
      const auto limit = static_cast<double>(static_cast<float>(threshold));
      if (limit > 1) continue;
      const bool is_greater = exact > limit;
      const Verdict verdict =
          other.meets(kept) ? other.compare(kept, static_cast<float>(limit)) : Verdict::not_greater;
      wrong += verdict != Verdict::unknown && (verdict == Verdict::greater) != is_greater;
      if (threshold == 0.1 || threshold == 0.5 || threshold == 0.9) {
        ++all;
        unknown += verdict == Verdict::unknown;
        greater += verdict == Verdict::greater;
      }
    }
  }
  std::printf("%s %d %d %d %d\\n", name, wrong, unknown, greater, all);
}

int main() {
  const auto angle = [] { return uniform(-4, 4); };
  run("ordinary", 200000, [&]() -> Pair {
    const float x = uniform(0, 640), y = uniform(0, 640), w = log_uniform(8, 200), h = log_uniform(8, 200), t = angle();
    const double d = 0.4 * (w + h);
    return {{x, y, w, h, t},
            {x + uniform(-d, d), y + uniform(-d, d), w * uniform(0.5, 2), h * uniform(0.5, 2), t + uniform(-1, 1)}};
  });
  run("near", 200000, [&]() -> Pair {
    const float x = uniform(0, 2000), y = uniform(0, 2000), w = log_uniform(5, 300), h = log_uniform(5, 300), t = angle();
    return {{x, y, w, h, t},
            {x + w * uniform(-0.1, 0.1), y + h * uniform(-0.1, 0.1), w * uniform(0.9, 1.1), h * uniform(0.9, 1.1),
             t + uniform(-0.05, 0.05)}};
  });
  run("equal", 50000, [&]() -> Pair {
    const float x = uniform(-9, 9), y = uniform(-9, 9), w = log_uniform(1e-3, 1e3), h = log_uniform(1e-3, 1e3), t = angle();
    return {{x, y, w, h, t}, {x, y, w, h, uniform(0, 1) < 0.5f ? t : t + 3.14159274f}};
  });
  run("thin", 200000, [&]() -> Pair {
    const float x = uniform(0, 100), y = uniform(0, 100), w = log_uniform(1, 1e4), h = log_uniform(1e-4, 1), t = angle();
    return {{x, y, w, h, t},
            {x + h * uniform(-1, 1), y + h * uniform(-1, 1), w * uniform(0.5, 2), h * uniform(0.5, 2),
             t + uniform(-1, 1) * h / w}};
  });
  run("parallel", 200000, [&]() -> Pair {  // edges that lie on one another
    const float w = std::round(uniform(1, 9)), h = std::round(uniform(1, 9)), t = 0.785398163f * std::round(uniform(-4, 4));
    return {{0, 0, w, h, t}, {std::round(uniform(-9, 9)) / 2, std::round(uniform(-9, 9)) / 2, w, h, t}};
  });
  run("far", 100000, [&]() -> Pair {
    const float x = uniform(-1e6, 1e6), y = uniform(-1e6, 1e6), w = log_uniform(0.1, 10), h = log_uniform(0.1, 10);
    return {{x, y, w, h, angle()}, {x + uniform(-5, 5), y + uniform(-5, 5), w * uniform(0.5, 2), h, angle()}};
  });
  run("small in large", 100000, [&]() -> Pair {
    const float w = log_uniform(1e-6, 1), h = log_uniform(1e-6, 1), s = log_uniform(1, 1e6);
    return {{uniform(-1, 1) * s, uniform(-1, 1) * s, w, h, angle()}, {0, 0, s, s * uniform(0.1, 1), angle()}};
  });
  run("any scale", 200000, [&]() -> Pair {
    const float s = log_uniform(1e-44, 3e38), r = log_uniform(1e-6, 1);
    return {{uniform(-1, 1) * s, uniform(-1, 1) * s, s * uniform(0, 1), s * r, angle()},
            {uniform(-1, 1) * s, uniform(-1, 1) * s, s * uniform(0, 1), s * uniform(0, 1), angle()}};
  });
  run("odd", 200000, [&]() -> Pair {
    const float odd[] = {0, -0.0f, 1, -1, 1e-45f, 1e-38f, 1e38f, INFINITY, -INFINITY, NAN, 2, 0.5f};
    Pair pair;
    for (float* box : {pair.a, pair.b}) {
      for (int i = 0; i < 5; ++i) box[i] = odd[random_bits() % (random_bits() % 2 ? 12 : 3)];
    }
    return pair;
  });
}
"""


def test_floats_decide_as_f64(tmp_path: Path) -> None:
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(PROGRAM)
    subprocess.run(
        ["g++", "-std=c++20", "-O2", "-ffp-contract=off", f"-I{SOURCE}", str(source), "-o", str(program)], check=True
    )
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    families = {line.rsplit(maxsplit=4)[0]: [int(n) for n in line.rsplit(maxsplit=4)[1:]] for line in said.splitlines()}
    assert len(families) == 9
    for name, (wrong, unknown, greater, pairs) in families.items():
        assert wrong == 0, said
        if name in ("ordinary", "near", "far"):
            assert unknown < pairs / 500, said
            assert pairs / 50 < greater < pairs, said
