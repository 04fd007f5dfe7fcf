"""The OpenAI-compatible HTTP app of the engine."""
