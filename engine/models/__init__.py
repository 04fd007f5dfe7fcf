"""Decoder architectures the engine can run."""
