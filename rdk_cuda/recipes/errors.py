"""Bad input, which a user is told of in one line instead of a traceback."""

INSTALL = "in the source folder, pip install --no-build-isolation '.[{}]'"


class InputError(Exception):
    """Something given, or not installed, does not do: the message says what would."""
