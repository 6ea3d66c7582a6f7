"""``python -m fastlbbnn.cli``."""

from . import main

main()
