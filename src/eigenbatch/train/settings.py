"""Settings of components: frozen dataclasses, nested in one `Run`, set by dotted names.

A component's settings are a subclass of its kind, e.g. `SimCLRConfig(MethodConfig, name="simclr")`.
The name is what a manifest stores as "kind" and what `--set method=simclr` chooses. Nothing in this
module or in the settings imports torch: a wrong setting is reported at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from eigenbatch.errors import ParameterError

C = TypeVar("C", bound="Config")


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, as an annotation: `Annotated[int, Range(1, 100)]`."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below

    def __str__(self) -> str:
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"


Count = Annotated[int, Range(1, 10**9)]
Width = Annotated[int, Range(1, 16_384)]
Positive = Annotated[float, Range(0, 1e9, open_low=True)]
NotNegative = Annotated[float, Range(0, 1e9)]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all settings; checks types and ranges of its fields when it is made."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if name:
            cls.kind = name

    def __post_init__(self) -> None:
        for name, hint in hints(type(self)).items():
            problem = _problem(getattr(self, name), hint)
            if problem:
                raise ParameterError(f"{name} must be {problem}, got {getattr(self, name)!r}")
        self.check()

    def check(self) -> None:
        """Raise a ParameterError if fields do not fit together."""

    @classmethod
    def options(cls) -> dict[str, type[Self]]:
        """Every named kind of this component."""
        found = {cls.kind: cls} if "kind" in vars(cls) else {}
        for child in cls.__subclasses__():
            found |= child.options()
        return found


def hints(cls: type) -> dict[str, Any]:
    """Types of the fields, in order, annotations such as `Range` included."""
    known = get_type_hints(cls, include_extras=True)
    return {field.name: known[field.name] for field in fields(cls)}


def to_plain(config: Config) -> dict[str, Any]:
    """Settings as JSON values; a component of several kinds names its own as "kind".

    Args:
        config: the settings.

    Returns:
        Nested dicts, as a manifest stores them.

    Examples:
        >>> from eigenbatch.train import Run, to_plain
        >>> to_plain(Run())["schedule"]
        {'kind': 'cosine', 'warmup_epochs': 1}
    """
    values: dict[str, Any] = {"kind": config.kind} if config.kind else {}
    for name in hints(type(config)):
        value = getattr(config, name)
        if isinstance(value, Config):
            value = to_plain(value)
        elif isinstance(value, Path):
            value = str(value)
        values[name] = value
    return values


def from_plain(kind: type[C], content: object, place: str = "") -> C:
    """The settings that `to_plain` was called on; a ParameterError names what does not fit."""
    where = place or "settings"
    if not isinstance(content, Mapping):
        raise ParameterError(f"{where} must be a JSON object, got {content!r:.60}")
    values = dict(content)
    chosen = values.pop("kind", None)
    cls = kind_named(kind, chosen, where) if chosen is not None else kind
    types = hints(cls)
    for name in values:
        if name not in types:
            raise ParameterError(f"{where} has no setting {name!r:.60}: known are {listed(types)}")
    made = {}
    for name, value in values.items():
        inner = _config_in(types[name])
        below = f"{place}.{name}" if place else name
        if inner is not None and value is not None:
            made[name] = from_plain(inner, value, below)
        else:
            made[name] = _from_json(value, types[name])
    try:
        return cls(**made)
    except ParameterError as reason:
        raise ParameterError(f"{place}.{reason}" if place else str(reason)) from None


def override(config: C, settings: Sequence[str]) -> C:
    """The settings with "dotted.name=value" texts applied, in order where it matters.

    `method=moco` changes the kind of a component and keeps the settings that both kinds have.

    Args:
        config: the settings to start from.
        settings: texts as after `--set` on the command line.

    Returns:
        New settings.

    Examples:
        >>> from eigenbatch.train import Run, override
        >>> override(Run(), ["budget.epochs=5", "batches.selector=greedy-64"]).batches.selector
        'greedy-64'
    """
    waiting = list(settings)
    while waiting:  # one may fit only after another, as a pool_size after its batch_size
        refused: dict[str, ParameterError] = {}
        for setting in waiting:
            try:
                config = _applied(config, setting)
            except ParameterError as reason:
                refused[setting] = reason
            else:  # the last of a name counts
                refused = {one: why for one, why in refused.items() if _name(one) != _name(setting)}
        if len(refused) == len(waiting):
            raise refused[waiting[0]]
        waiting = list(refused)
    return config


def _applied(config: C, setting: str) -> C:
    _, separator, text = setting.partition("=")
    if not separator:
        raise ParameterError(f"cannot set {setting!r}: write NAME=VALUE, e.g. method.tau=0.1")
    return _override(config, _name(setting).split("."), text, setting, "")


def _name(setting: str) -> str:
    return setting.partition("=")[0].strip()


def kind_named(kind: type[C], name: object, where: str) -> type[C]:
    """The settings class of that name."""
    options = kind.options()
    if not isinstance(name, str) or name not in options:
        raise ParameterError(f"{where} must be one of {listed(options)}, got {name!r:.60}")
    return options[name]


def listed(names: Mapping[str, Any]) -> str:
    """Names for an error text."""
    return ", ".join(names)


def _override(config: C, path: list[str], text: str, setting: str, place: str) -> C:
    name, types = path[0], hints(type(config))
    dotted = f"{place}.{name}" if place else name
    if name not in types:
        known = ", ".join(_dotted_names(config, place))
        raise ParameterError(f"cannot set {setting!r}: unknown name {dotted!r}. Known are {known}")
    inner, value = _config_in(types[name]), getattr(config, name)
    try:
        if len(path) > 1:
            if not isinstance(value, Config):
                raise ParameterError(f"{dotted} has no settings of its own (it is {value!r})")
            made = _override(value, path[1:], text, setting, dotted)
        elif inner is not None:
            made = _other_kind(value, inner, text, dotted, types[name])
        else:
            made = _from_text(text, types[name], dotted)
        return replace(config, **{name: made})
    except ParameterError as reason:
        message = str(reason)
        if message.startswith("cannot set"):
            raise
        raise ParameterError(f"cannot set {setting!r}: {message}") from None


def _other_kind(value: Any, kind: type[Config], text: str, place: str, hint: Any) -> Any:
    if text == "none" and type(None) in get_args(hint):
        return None
    cls = kind_named(kind, text, place)
    if type(value) is cls:
        return value
    old = {} if value is None else {name: getattr(value, name) for name in hints(type(value))}
    return cls(**{name: old[name] for name in hints(cls) if name in old})


def _dotted_names(config: Config, place: str) -> Iterator[str]:
    for name in hints(type(config)):
        value = getattr(config, name)
        dotted = f"{place}.{name}" if place else name
        yield dotted
        if isinstance(value, Config):
            yield from _dotted_names(value, dotted)


def _bare(hint: Any) -> tuple[Any, Range | None]:
    if get_origin(hint) is Annotated:
        bare, *extras = get_args(hint)
        return bare, next((one for one in extras if isinstance(one, Range)), None)
    return hint, None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _config_in(hint: Any) -> type[Config] | None:
    """The settings class a field may hold, if any."""
    for one in _alternatives(hint):
        if isinstance(one, type) and issubclass(one, Config):
            return one
    return None


def _problem(value: Any, hint: Any) -> str:
    """What the value must be, in words; empty if it fits the hint."""
    wanted = []
    for one in _alternatives(hint):
        bare, limits = _bare(one)
        if bare is type(None):
            if value is None:
                return ""
            wanted.append("none")
        elif get_origin(bare) is Literal:
            if value in get_args(bare):
                return ""
            wanted.append("one of " + ", ".join(map(str, get_args(bare))))
        elif bare in (int, float):
            fits = isinstance(value, (int, float) if bare is float else int)
            if fits and not isinstance(value, bool) and (limits is None or value in limits):
                return ""
            word = "a whole number" if bare is int else "a number"
            wanted.append(f"{word} in {limits}" if limits else word)
        elif isinstance(value, bare):
            return ""
        elif issubclass(bare, Config):
            wanted.append(f"settings, one of {listed(bare.options())}")
        else:
            wanted.append({str: "a text", bool: "true or false", Path: "a path"}.get(bare, "valid"))
    return " or ".join(wanted)


def _from_json(value: Any, hint: Any) -> Any:
    """A JSON value as the field's type; anything that does not fit is left to the check."""
    kinds = {_bare(one)[0] for one in _alternatives(hint)}
    if isinstance(value, str) and Path in kinds and str not in kinds:
        return Path(value)
    return value


def _from_text(text: str, hint: Any, place: str) -> Any:
    kinds = [_bare(one)[0] for one in _alternatives(hint)]
    if text == "none" and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is bool:
            if text not in ("true", "false"):
                raise ParameterError(f"{place} is true or false")
            return text == "true"
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                word = "a whole number" if kind is int else "a number"
                raise ParameterError(f"{place} is {word}, got {text!r}") from None
        if kind is Path:
            return Path(text)
    return text
