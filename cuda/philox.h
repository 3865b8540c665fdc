// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): the one source of
// randomness of the library. A draw is a function of a 64-bit key and a 128-bit counter, nothing else.
#pragma once

#include <cstdint>

#include "macros.h"

namespace gnnscale {

struct Philox {
  uint32_t word[4];
};

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;  // multipliers
constexpr uint32_t kPhiloxW0 = 0x9E3779B9u, kPhiloxW1 = 0xBB67AE85u;  // Weyl increments of the key

GNNSCALE_HD void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0, uint32_t k1) {
  const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0;
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(p0);
}

// The 128-bit block of (key, counter), the counter given as four words, least significant first.
GNNSCALE_HD Philox philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(c0, c1, c2, c3, k0, k1);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return {{c0, c1, c2, c3}};
}

// Draw 0 or 1 (64 bits each) of a block.
GNNSCALE_HD uint64_t philox_draw(const Philox& block, int half) {
  const uint32_t low = half == 0 ? block.word[0] : block.word[2];  // no array of a thread's own is indexed
  const uint32_t high = half == 0 ? block.word[1] : block.word[3];
  return static_cast<uint64_t>(low) | static_cast<uint64_t>(high) << 32;
}

// floor(random * range / 2^64): uniform in [0, range) up to range / 2^64, without a division.
GNNSCALE_HD uint64_t bounded(uint64_t random, uint64_t range) {
#ifdef __CUDA_ARCH__
  return __umul64hi(random, range);
#else
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * range) >> 64);
#endif
}

}  // namespace gnnscale
