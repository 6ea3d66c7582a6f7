"""This machine: what runs here, whether it computes what it should, and how fast."""
