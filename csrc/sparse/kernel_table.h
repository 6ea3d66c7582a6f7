// Builds the table of one instruction set: included once by each kernels_*.cpp, after it has set
// FASTLBBNN_ARCH and included its vector type and lanes.
#pragma once

#include "bsr.h"
#include "draw.h"
#include "kernels.h"
#include "spmm.h"
#include "spmv.h"
#include "spmv_sampled.h"
#include "tiles.h"

#define FASTLBBNN_SPARSE_TABLE(symbol, label, group)                                             \
  namespace fastlbbnn {                                                                          \
  namespace sparse {                                                                             \
  using FASTLBBNN_ARCH::Lanes;                                                                   \
  using FASTLBBNN_ARCH::Vec;                                                                     \
  const Kernels symbol = {label,                                                                 \
                          Vec::kLanes,                                                           \
                          group,                                                                 \
                          FASTLBBNN_ARCH::spmm_panel<Vec, Lanes>,                                \
                          FASTLBBNN_ARCH::spmm_blocks<Vec>,                                      \
                          FASTLBBNN_ARCH::spmv_slices<Vec, Lanes>,                               \
                          FASTLBBNN_ARCH::spmv_blocks<Vec>,                                      \
                          FASTLBBNN_ARCH::spmv_sampled<Vec>,                                     \
                          FASTLBBNN_ARCH::to_tile<Vec, Lanes>,                                   \
                          FASTLBBNN_ARCH::from_tile<Vec, Lanes>,                                 \
                          FASTLBBNN_ARCH::draw<Vec>};                                            \
  }                                                                                              \
  }
