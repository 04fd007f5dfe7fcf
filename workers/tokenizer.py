"""Counts the tokens of an answer with the model's own tokenizer, where the service does not tell. Gevent-free."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from workers.errors import SettingsError


class TokenCounter:
    """Counts whole texts: tokens of pieces do not add up to the tokens of the whole."""

    def __init__(self, source: str) -> None:
        """``source``: a ``tokenizer.json``, a folder that holds one, or the name of a model on a hub.

        Raises:
            SettingsError: there is no tokenizer.
        """
        path = Path(source)
        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(path)) if path.exists() else Tokenizer.from_pretrained(source)
        except Exception as error:  # the library raises bare Exceptions
            raise SettingsError(f"tokenizer {source!r} cannot be loaded: {error}; give a tokenizer.json") from error

    def count(self, text: str) -> int:
        """Tokens of a text, without those that a tokenizer puts around it."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)
