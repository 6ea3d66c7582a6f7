"""Fitting: the bound, likelihoods, optimiser."""

from . import dispersion, families

__all__ = ["dispersion", "families"]  # imported so that their likelihoods are registered
