"""Training contrastive models with spectrum-aware batches: one loop, small parts.

Every component keeps its settings in its own room; `run.py` nests them, `trainer.py` trains them.
The public names are listed in `__init__.pyi` and imported on first use: settings load no torch.
"""

from typing import Any

import lazy_loader

from eigenbatch.missing import explained

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        raise explained(error) from error
