// Walking along a row in vectors, with a shorter last one.
#pragma once

#include <cstdint>

#include "../common/inline.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// A whole vector of columns.
template <class V>
struct WholeVector {
  FL_INLINE typename V::F load(const float* p) const { return V::load(p); }
  FL_INLINE void store(float* p, typename V::F x) const { V::store(p, x); }
  FL_INLINE typename V::F keep(typename V::F x) const { return x; }
  FL_INLINE uint32_t first_bits(uint32_t mask) const { return mask; }
};

// The first n columns of a vector: loads give 0 in the others, stores leave them alone.
template <class V>
struct PartVector {
  int n;
  FL_INLINE typename V::F load(const float* p) const { return V::load(p, n); }
  FL_INLINE void store(float* p, typename V::F x) const { V::store(p, x, n); }
  FL_INLINE typename V::F keep(typename V::F x) const { return V::keep(x, n); }
  FL_INLINE uint32_t first_bits(uint32_t mask) const { return mask & ((1u << n) - 1u); }
};

// Asks for the cache line `ahead` columns on. Rows follow one another in memory, so that what lies past
// a run of columns is what the next run reads; a layer that is larger than the caches otherwise waits
// at the start of every run (13 to 18 % of the time at 2048 x 2048). Past the end of a tensor it is a no-op.
FL_INLINE void prefetch(const float* p, int64_t ahead) { __builtin_prefetch(p + ahead); }
FL_INLINE void prefetch_to_write(float* p, int64_t ahead) { __builtin_prefetch(p + ahead, 1); }

// body(k, lanes) for k = 0, V::kLanes, ... below n.
template <class V, class Body>
FL_INLINE void for_columns(int64_t n, const Body& body) {
  int64_t k = 0;
  for (; k + V::kLanes <= n; k += V::kLanes) body(k, WholeVector<V>{});
  if (k < n) body(k, PartVector<V>{static_cast<int>(n - k)});
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
