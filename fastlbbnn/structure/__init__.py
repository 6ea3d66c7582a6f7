"""Which weights a model keeps: paths, thresholds, criteria, the most probable structure."""
