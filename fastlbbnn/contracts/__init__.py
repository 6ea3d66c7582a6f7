"""What a thing of each kind promises, as checks that anyone can run on their own.

    from fastlbbnn.contracts import check_likelihood

    check_likelihood(StudentT)

Each check raises an AssertionError with a sentence that says what is not so.
"""

from .likelihood import check_likelihood

__all__ = ["check_likelihood"]
