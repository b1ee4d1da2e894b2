"""One file per data set: its settings, and how it is read.

Every file of this folder is found: there is no list to keep. The files load no torch until data is
read, so that a wrong setting is reported at once.
"""

from eigenbatch.discovery import modules_of

modules_of(__name__, __path__)
