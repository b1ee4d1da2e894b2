"""What callers may catch. Every error states the contract and the values."""


class ShapeError(ValueError):
    """Tensors whose sizes do not fit together, or too few rows."""


class RowError(ValueError):
    """A row that is no direction: zero, NaN or infinite."""


class ParameterError(ValueError):
    """A scalar or an option outside its range."""


class ArgumentTypeError(TypeError):
    """An argument of the wrong type: a numpy array for a tensor, a float for a size, None, text."""


class NumericalWarning(UserWarning):
    """The result is finite but the input was degenerate; the message says what was done."""
