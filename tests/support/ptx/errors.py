"""The one exception of the interpreter."""


class PtxError(Exception):
    """The PTX is not understood, or does what a GPU would not forgive."""
