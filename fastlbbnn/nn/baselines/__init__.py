"""The layers that the paper compares latent binary ones with."""
