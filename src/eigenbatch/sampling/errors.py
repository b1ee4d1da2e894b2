"""What the sampling layer adds to the errors of `eigenbatch.errors`."""


class CacheFileError(ValueError):
    """A file that is no embedding cache, or one of another shape, dtype or version."""


class StateError(ValueError):
    """A saved state that belongs to another cache or sampler."""
