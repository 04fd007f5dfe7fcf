"""Attention over the paged KV cache, one module a device."""
