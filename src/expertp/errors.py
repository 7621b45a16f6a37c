"""The one exception that means "the user can fix this"."""


class InputError(ValueError):
    """Bad input: one line that says what is wrong, the value seen, what is allowed and the fix.

    The command line prints it without a traceback and exits with code 2.
    """
