"""From the words of a command line to the settings of a run; loads no torch."""

from pathlib import Path

from eigenbatch.errors import ParameterError
from eigenbatch.runs.directory import RunDirectory
from eigenbatch.train.data import DataConfig
from eigenbatch.train.data.sets.folder import FolderConfig
from eigenbatch.train.recipes import recipe as recipe_named
from eigenbatch.train.run import Run, load_run
from eigenbatch.train.settings import override


def fresh(
    out: Path, recipe: str | None, data: str | None, data_dir: Path | None, settings: list[str]
) -> Run:
    """The settings of a new run; checked before anything heavy is imported."""
    run = configured(recipe, data, data_dir, settings)
    RunDirectory(out).check_free(checkpoints=True)
    return run


def resumed(
    out: Path, recipe: str | None, data: str | None, data_dir: Path | None, settings: list[str]
) -> Run:
    """The settings of the run in `out`; those given again must be the same, epochs may grow."""
    stored = load_run(RunDirectory(out))
    if recipe is not None:
        return configured(recipe, data, data_dir, settings)
    given = _data_settings(data, data_dir)
    return override(stored, [*given, *settings])


def configured(
    recipe: str | None, data: str | None, data_dir: Path | None, settings: list[str]
) -> Run:
    """The recipe's run with what was asked for on top; a path as `data` means its pictures."""
    given = _data_settings(data, data_dir)
    kind = given[0].partition("=")[2] if data is not None else "digits"
    kind = _chosen_data(settings) or kind
    fitting = DataConfig.options().get(kind, DataConfig).recipe
    run = recipe_named(recipe or fitting, data_dir)
    kinds_first = sorted([*given, *settings], key=lambda text: "." in text.partition("=")[0])
    run = override(run, kinds_first)
    run.validate()
    return run


def check_comparable(run: Run) -> None:
    """Raise, before anything is trained, if runs would have no accuracy to compare."""
    if isinstance(run.data, FolderConfig) and not run.data.labels:
        raise ParameterError(
            "compare needs an accuracy, and data.labels=false has none: sort the pictures into "
            "classes, or compare a metric of your own with eigenbatch.compare in Python"
        )


def _data_settings(data: str | None, data_dir: Path | None) -> list[str]:
    """What --data and --data-dir set; absolute, so that a run is resumed on the same data."""
    known = DataConfig.options()
    directory = [] if data_dir is None else [f"data.directory={data_dir.absolute()}"]
    if data is None:
        return directory
    if data in known:
        return [f"data={data}", *directory]
    if not Path(data).exists():
        raise ParameterError(f"--data {data}: neither {', '.join(known)} nor a folder or zip")
    return ["data=folder", f"data.directory={Path(data).absolute()}"]


def _chosen_data(settings: list[str]) -> str | None:
    return next((text[5:] for text in settings if text.startswith("data=")), None)
