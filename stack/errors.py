"""What can go wrong here, as one type: everything this package raises on purpose is the operator's turn."""


class StackError(Exception):
    """A server or a file isn't as it must be; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep both sentences apart so that a command can print them in two styles."""
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint
