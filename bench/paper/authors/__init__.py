"""The objective and the predictions of the authors' published scripts, defects included.

It exists to match the published tables, and is used for nothing else: see the README beside this package.
"""
