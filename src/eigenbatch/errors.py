"""What callers may catch. Every error states the contract and the values."""


class ShapeError(ValueError):
    """Tensors whose sizes do not fit together, or too few rows."""


class RowError(ValueError):
    """A row that is no direction: zero, NaN or infinite."""


class ParameterError(ValueError):
    """A scalar or an option outside its range."""


class LossError(ValueError):
    """A loss that is wrong, or that cannot be checked; the text says what to pass instead."""


class RunError(ValueError):
    """A run directory that cannot be used as asked; the text says what to do."""


class DataError(ValueError):
    """Data that is absent, incomplete or not what it claims to be; the text says what to do."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the text says why and what to do."""


class ArgumentTypeError(TypeError):
    """An argument of the wrong type: a numpy array for a tensor, a float for a size, None, text."""


class NumericalWarning(UserWarning):
    """The result is finite but the input was degenerate; the message says what was done."""


class CacheFileError(ValueError):
    """A file that is no embedding cache, or one of another layout, or that can only be read."""


class StateError(ValueError):
    """A saved state that belongs to another cache or sampler, or is damaged."""
