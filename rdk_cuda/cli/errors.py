"""What ends a command with one line instead of a traceback."""


class InputError(Exception):
    """Something the user gave, or has not installed, does not do. Says what, and what would."""
