"""Spectral bands, diagnoses and batch selection for contrastive training.

The public names are listed in `__init__.pyi` and imported on first use: `import eigenbatch` alone
does not load torch. Everything else is imported from its room, e.g. `eigenbatch.core`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
