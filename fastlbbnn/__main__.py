"""``python -m fastlbbnn``: the command line."""

from .cli import main

main()
