// The kernels for any processor.
#define FASTLBBNN_ARCH portable
#include "../common/vec_portable.h"

#include "kernel_table.h"

FASTLBBNN_KERNEL_TABLE(kPortableKernels, "portable", nullptr)
