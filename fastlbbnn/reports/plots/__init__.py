"""Figures, one file per family. They take plain arrays or tensors and give matplotlib figures:

    from fastlbbnn.reports import plots

    figure = plots.inclusion_histograms({"MNIST": [layer.inclusion_probabilities() for layer in layers]})
    plots.save(figure, "inclusion.png")
"""

from __future__ import annotations

from .calibration import reliability_diagram
from .lines import accuracy_against_samples, entropy_ecdfs, width_study
from .predictive import Example, misclassified, predictive_bars
from .regression import observed_against_predicted
from .structure import correlation_heatmaps, inclusion_histograms, used_inputs
from .style import as_bytes, save
from .training import training_curves

__all__ = [
    "Example",
    "accuracy_against_samples",
    "as_bytes",
    "correlation_heatmaps",
    "entropy_ecdfs",
    "inclusion_histograms",
    "misclassified",
    "observed_against_predicted",
    "predictive_bars",
    "reliability_diagram",
    "save",
    "training_curves",
    "used_inputs",
    "width_study",
]
