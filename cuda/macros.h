// Host-device markers: headers that use them are compiled by the C++ compiler and by nvcc alike.
#pragma once

#ifdef __CUDACC__
#define GNNSCALE_HD __host__ __device__ __forceinline__  // a call takes a stack, which is local memory
#else
#define GNNSCALE_HD inline
#endif

// Always inlined: GCC drops calls of functions that only prefetch, as calls without effect.
#define GNNSCALE_INLINE __attribute__((always_inline)) inline
#define GNNSCALE_INLINE_LAMBDA __attribute__((always_inline))

// A hint that the cache line of `address` is read (or written) soon. Lines to read go to the second-level cache, which
// can wait for more lines at once than the first.
#define GNNSCALE_PREFETCH(address) __builtin_prefetch((address), 0, 2)
#define GNNSCALE_PREFETCH_WRITE(address) __builtin_prefetch((address), 1, 3)
