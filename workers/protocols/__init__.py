"""Wire protocols of LLM services, one module each, by name."""

from workers.protocols import anthropic_messages, openai_chat, openai_completions
from workers.protocols.wire_protocol import WireProtocol

PROTOCOLS: dict[str, WireProtocol] = {
    module.PROTOCOL.name: module.PROTOCOL for module in (openai_chat, openai_completions, anthropic_messages)
}

__all__ = ["PROTOCOLS", "WireProtocol"]
