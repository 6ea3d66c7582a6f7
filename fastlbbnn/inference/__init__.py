"""Fitting: the bound, likelihoods, optimiser."""
