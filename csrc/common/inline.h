// Force-inlining: the vector helpers are worth their cost only when they vanish into the loop.
#pragma once

#define FL_ALWAYS __attribute__((always_inline))
#define FL_INLINE inline FL_ALWAYS
