"""Selectors: which samples of a pool should share a batch.

The public names are listed in `__init__.pyi` and imported on first use, so that names can be
checked without loading torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
