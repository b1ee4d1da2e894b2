"""One small pure function per finding, in the file of its subject.

Rules are found in every file of this folder: there is no list to keep.
"""

from eigenbatch.discovery import defined_in
from eigenbatch.monitor.rule import Rule

RULES = tuple(sorted(defined_in(__name__, __path__, Rule), key=lambda rule: rule.place))
"""Every rule, causes before symptoms."""
