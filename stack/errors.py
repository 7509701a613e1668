"""The error of this package. Everything that it raises on purpose needs the operator."""


class StackError(Exception):
    """A server or a file isn't as it must be. `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint
