"""What computes a selected network: compiled kernels for the CPU and for CUDA, and the plan of a layer."""
