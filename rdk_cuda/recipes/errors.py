"""What a user is told in one line instead of a traceback."""

INSTALL = "in the source folder, pip install --no-build-isolation '.[{}]'"


class InputError(Exception):
    """Something the user gave, or has not installed, does not do. Says what, and what would."""
