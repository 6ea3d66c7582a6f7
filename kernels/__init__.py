"""Triton kernels; installed as ``fastlbbnn.kernels``."""
