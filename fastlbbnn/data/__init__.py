"""Data sets that live in memory as tensors.

    data = fastlbbnn.data.load("mnist")                     # digits, mnist, fmnist, phoneme
    data = fastlbbnn.data.load("patients.csv", target="outcome", standardise=True)

Files of the named sets are looked for in ``root``, else in the folder that FASTLBBNN_DATA names, else in
a cache folder of the user's.
"""

from .dataset import Dataset, split_rows
from .files import DataError, MissingDataError, data_root
from .loading import NAMES, available, load

__all__ = [
    "NAMES", "DataError", "Dataset", "MissingDataError", "available", "data_root", "load", "split_rows",
]
