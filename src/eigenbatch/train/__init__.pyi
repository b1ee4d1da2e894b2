"""The public names of this room, once."""

from .assembly import Assembled as Assembled
from .assembly import assemble as assemble
from .batch import Batch as Batch
from .batches import NAMES as NAMES
from .batches import Name as Name
from .batches import selector_named as selector_named
from .export import probe_run as probe_run
from .loop import Observer as Observer
from .loop import Step as Step
from .loop import Training as Training
from .loop import fit as fit
from .recipes import RECIPES as RECIPES
from .recipes import recipe as recipe
from .run import Run as Run
from .run import load_run as load_run
from .settings import override as override
from .settings import to_plain as to_plain
from .trainer import made_by as made_by
from .trainer import train as train
