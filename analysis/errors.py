"""What stops an analysis: input that cannot be read as what it claims to be."""


class InputError(Exception):
    """The input is unusable; the message is one line that says what, where and how to mend it."""
