"""What a thing of each kind promises, as checks that anyone can run on their own.

    from fastlbbnn.contracts import check_likelihood

    check_likelihood(StudentT)

    prior              check_prior(Prior)                 sparse format    check_format(name)
    likelihood         check_likelihood(Likelihood)       data set         check_dataset(name)
    layer              check_layer(Layer)                 recipe           check_recipe(recipe)
    optimiser rule     check_update_rule(name)            backend          check_backend(name)

Each check raises an AssertionError with a sentence that says what is not so.
"""

from .backend import check_backend
from .dataset import check_dataset
from .layer import check_layer
from .likelihood import check_likelihood
from .prior import check_prior
from .recipe import check_recipe
from .sparse_format import check_format
from .update_rule import check_update_rule

__all__ = [
    "check_backend", "check_dataset", "check_format", "check_layer", "check_likelihood", "check_prior",
    "check_recipe", "check_update_rule",
]  # fmt: skip
