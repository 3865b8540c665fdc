// Loops over the items of a row, to be run by `vectorized`. Sums have the type that rows are widened to.
#pragma once

#include <cstdint>

#include "../simd_cpu.h"
#include "columns.h"

namespace gnnscale {

struct CopyRow {
  template <typename Row>
  GNNSCALE_INLINE static void run(Wide<Row>* __restrict out, const Row* __restrict x, int64_t width) {
    for (int64_t c = 0; c < width; ++c) out[c] = widen(x[c]);
  }
};

struct NarrowRow {
  template <typename Row>
  GNNSCALE_INLINE static void run(Row* __restrict out, const Wide<Row>* __restrict x, int64_t width) {
    for (int64_t c = 0; c < width; ++c) narrow(x[c], out[c]);
  }
};

struct AddRow {
  template <typename Row>
  GNNSCALE_INLINE static void run(Wide<Row>* __restrict out, const Row* __restrict x, int64_t width) {
    for (int64_t c = 0; c < width; ++c) out[c] += widen(x[c]);
  }
};

// Each head, `head` items of x, times its scale.
struct AddScaledHeads {
  template <typename Row, typename Scale>
  GNNSCALE_INLINE static void run(Wide<Row>* __restrict out, const Row* __restrict x, const Scale* __restrict scale,
                                  int64_t heads, int64_t head) {
    for (int64_t h = 0; h < heads; ++h, out += head, x += head) {
      const Wide<Row> factor = widen(scale[h]);
      for (int64_t c = 0; c < head; ++c) out[c] += product(factor, widen(x[c]));
    }
  }
};

template <bool kMax>
struct KeepExtreme {
  template <typename Row>
  GNNSCALE_INLINE static void run(Wide<Row>* __restrict out, const Row* __restrict x, int64_t width) {
    for (int64_t c = 0; c < width; ++c) out[c] = extreme_of<kMax>(out[c], widen(x[c]));
  }
};

struct CountTies {
  template <typename Row>
  GNNSCALE_INLINE static void run(Wide<Row>* __restrict ties, const Row* __restrict x, const Row* __restrict extreme,
                                  int64_t width) {
    for (int64_t c = 0; c < width; ++c) ties[c] += tie(widen(x[c]), widen(extreme[c]));
  }
};

struct AddGivenBack {
  template <typename Row>
  GNNSCALE_INLINE static void run(Wide<Row>* __restrict sum, const Row* __restrict x, const Row* __restrict extreme,
                                  const Row* __restrict share, int64_t width) {
    for (int64_t c = 0; c < width; ++c) sum[c] += given_back(widen(x[c]), widen(extreme[c]), widen(share[c]));
  }
};

// The dot product of each head, `head` items of both rows.
struct DotHeads {
  template <typename A, typename B>
  GNNSCALE_INLINE static void run(B* out, const A* a, const B* b, int64_t heads, int64_t head) {
    for (int64_t h = 0; h < heads; ++h) narrow(dot(a + h * head, b + h * head, head), out[h]);
  }
};

}  // namespace gnnscale
