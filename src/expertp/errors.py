"""The two exceptions that the command line prints as one line, without a traceback."""


class InputError(ValueError):
    """Bad input: what is wrong, the value seen, what is allowed and the fix, in one line. Exit code 2."""


class RunError(RuntimeError):
    """The input is good and the work failed all the same: what happened and how to go on, in one line. Exit code 1."""
