"""An LLM inference engine: paged KV cache, continuous batching, and an OpenAI-compatible HTTP app."""
