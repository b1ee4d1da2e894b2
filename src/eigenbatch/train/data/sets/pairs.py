"""Sentence pairs in two text files; `data/pairs.py` reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from eigenbatch.errors import ParameterError
from eigenbatch.train.data.kinds import DataConfig
from eigenbatch.train.settings import Count, Range
from eigenbatch.train.views import ViewsConfig

if TYPE_CHECKING:
    from eigenbatch.train.data.source import Source


@dataclass(frozen=True, kw_only=True)
class PairsConfig(DataConfig, name="pairs"):
    """Sentence pairs: line i of one text file belongs to line i of the other; .gz is read too.

    Args:
        first: training sentences.
        second: their partners, e.g. translations.
        test_first: sentences for evaluation by retrieval; None: every tenth training pair.
        test_second: their partners.
        train_size: the first so many pairs; None: all.
        held_out: the last so many of them are not trained on: the selector "auto" compares them
            with training pairs before each plan. None: 512, at most a twentieth of all.
        vocabulary: most frequent words that are kept per side.
    """

    pairs: ClassVar[bool] = True
    recipe: ClassVar[str] = "pairs-cpu"

    first: Path | None = None
    second: Path | None = None
    test_first: Path | None = None
    test_second: Path | None = None
    train_size: Count | None = None
    held_out: Annotated[int, Range(0, 10**7)] | None = None
    vocabulary: Annotated[int, Range(2, 10**7)] = 30_000

    def open(self, views: ViewsConfig) -> "Source":
        """Both sides as word ids."""
        from eigenbatch.train.data.pairs import PairSource

        self.validate()
        return PairSource(self)

    def validate(self) -> None:
        """Both files must be given and exist."""
        if self.first is None or self.second is None:
            raise ParameterError("pairs needs data.first and data.second, two text files")
        if (self.test_first is None) != (self.test_second is None):
            raise ParameterError("give both data.test_first and data.test_second, or neither")
        for path in (self.first, self.second, self.test_first, self.test_second):
            if path is not None and not path.is_file():
                raise ParameterError(f"{path} is no text file: check the path")
