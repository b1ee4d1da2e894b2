"""One small pure function per finding, in the file of its subject.

Rules are found in every file of this folder: there is no list to keep.
"""

from eigenbatch.discovery import modules_of
from eigenbatch.monitor.rule import CloudRule, ReadingRule

_DEFINED = (one for module in modules_of(__name__, __path__) for one in vars(module).values())

RULES = tuple(
    sorted(
        (one for one in _DEFINED if isinstance(one, ReadingRule | CloudRule)),
        key=lambda rule: rule.place,
    )
)
"""Every rule, causes before symptoms."""
