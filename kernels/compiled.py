"""How kernels are compiled: once for what differs between layers, not for what differs between calls."""

import triton

#: Integers that change from call to call, or of which no address is made. Triton would compile anew where one of
#: them is 1 or a multiple of 16: in mid-epoch, for the last batch.
CHANGING = (
    "samples", "M", "splits", "grid_rows", "grid_cols", "block_rows", "block_cols", "partial_rows", "parts", "summed",
)  # fmt: skip
#: Pointers to few numbers, which may be a row of a larger tensor: one layer's seed, its gradient of the sums.
ANYWHERE = ("seed_ptr", "dsums_ptr", "sums_ptr")


def kernel(function):
    """``triton.jit`` for what is launched."""
    return triton.jit(
        function, do_not_specialize=CHANGING, do_not_specialize_on_alignment=ANYWHERE
    )
