"""What all pages share: templates, scripts, the content policy, how numbers are written."""

import base64
import hashlib
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from eigenbatch.report.data import script_json


def render_template(template: str, data: Any, *, live: bool = False, **values: Any) -> bytes:
    """A page as UTF-8 with its style, its scripts and the data that they draw."""
    scripts = {"head": _file("head.js"), "plotly": get_plotlyjs(), "page": _file("page.js")}
    scripts["live"] = _file("live.js") if live else ""
    text = (
        _environment()
        .get_template(template)
        .render(
            built=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            style=_file("page.css"),
            scripts=scripts,
            policy=_policy(scripts.values()),
            data=script_json(data),
            **values,
        )
    )
    return text.encode("utf-8", "replace")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("eigenbatch.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "percent": _percent,
        "duration": _duration,
        "setting": _setting,
        "png": lambda content: "data:image/png;base64," + base64.b64encode(content).decode(),
    }
    return environment


@cache
def _file(name: str) -> str:
    return (resources.files("eigenbatch.report") / "page" / name).read_text("utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """Only our own scripts may run, and nothing may be fetched from elsewhere."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}" if math.isfinite(value) else "–"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "–"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 120 else f"{hours:.1f} h"


def _setting(value: Any) -> str:
    """A setting as one would type it."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_setting(one)}" for key, one in value.items())
    return str(value)
