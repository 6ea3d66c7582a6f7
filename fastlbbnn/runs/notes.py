"""What may make a network of some data fail, said before it is trained."""

from __future__ import annotations

from ..data import Dataset

#: Root mean square of a feature above which the priors and step sizes, made for inputs of size 1, may fail.
LARGE_FEATURE = 10.0


def data_notes(dataset: Dataset) -> list[str]:
    """Sentences about features of another size than 1 and about classes that no training row has."""
    notes = []
    size = dataset.x_train.square().mean(0).sqrt()
    largest = int(size.argmax())
    if size[largest] > LARGE_FEATURE:
        name = f"input {largest}" if dataset.input_names is None else repr(dataset.input_names[largest])
        notes.append(
            f"values of {name} are of the size {size[largest]:.3g}; priors and step sizes are made for "
            "features of size 1: --standardise makes them so"
        )
    if dataset.n_classes is not None:
        unseen = sorted(set(dataset.y_test.int().tolist()) - set(dataset.y_train.int().tolist()))
        names = [str(c) if dataset.class_names is None else dataset.class_names[c] for c in unseen]
        if names:
            notes.append(
                f"no training row has the class {', '.join(names)}, but {dataset.held_out} rows do: a "
                "network cannot learn what it never sees"
            )
    return notes
