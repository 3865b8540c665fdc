// Which vectors the processor has, and loops that are compiled for them.
#pragma once

#include <cstdlib>
#include <string_view>

#include "macros.h"

namespace gnnscale {

#if defined(__x86_64__)
#define GNNSCALE_AVX2 __attribute__((target("avx2")))
#define GNNSCALE_AVX512 __attribute__((target("avx512f")))
#endif

enum class Simd { kNone, kAvx2, kAvx512 };

// The widest vectors that the processor has; GNNSCALE_SIMD=0 in the environment forbids them all, GNNSCALE_SIMD=avx2
// those of AVX-512.
inline Simd simd() {
#if defined(__x86_64__)
  static const Simd found = [] {
    const char* const value = std::getenv("GNNSCALE_SIMD");
    const std::string_view asked = value == nullptr ? "" : value;
    if (asked == "0" || !__builtin_cpu_supports("avx2")) return Simd::kNone;
    return asked != "avx2" && __builtin_cpu_supports("avx512f") ? Simd::kAvx512 : Simd::kAvx2;
  }();
  return found;
#else
  return Simd::kNone;
#endif
}

#if defined(__x86_64__)
// `flatten`: what is called by the loop is inlined, too, and so compiled for AVX2.
template <typename Loop, typename... Args>
GNNSCALE_AVX2 __attribute__((flatten)) auto run_avx2(Args... args) {
  return Loop::run(args...);
}
#endif

// Loop::run(args...), which is always inlined: compiled for AVX2 where the processor has it. AVX2 does not join a
// product and a sum, so both ways compute the same.
template <typename Loop, typename... Args>
auto vectorized(Args... args) {
#if defined(__x86_64__)
  if (simd() != Simd::kNone) return run_avx2<Loop>(args...);
#endif
  return Loop::run(args...);
}

}  // namespace gnnscale
