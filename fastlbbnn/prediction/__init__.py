"""Predictions: averages over draws, intervals, uncertainty, metrics, tables.

Named for what they are, since ``fastlbbnn.predict`` is the function that makes them.
"""
