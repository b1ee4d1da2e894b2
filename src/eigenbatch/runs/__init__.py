"""Run directories: one record of a run, one reader of it, one definition of each result.

Needs numpy and, for statistics, scipy; never torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
