"""What every room uses and no user imports: argument checks, files, memory, dtypes."""
