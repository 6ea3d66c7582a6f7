"""Triton kernels; installed as ``fastlbbnn.kernels``. Importing this package imports no Triton.

    noise.py posterior.py weights.py   device functions: the noise stream, elementary functions,
    tiles gated_linear.py ...                kernels, one file an op launch.py
    tensors to launches configs.py shipped.py              tile sizes per architecture; the list of
    all that is launched

Kernels import nothing from the layers above. No kernel has run on a GPU yet: they are checked in
Triton's interpreter and compiled for every architecture of ``configs.TABLES``.
"""
