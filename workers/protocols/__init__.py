"""Wire protocols of LLM services, one module each."""
