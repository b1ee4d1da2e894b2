"""Run directories in, one self-contained HTML page out; reads files only, never imports torch."""

from eigenbatch.missing import require

require("jinja2", "plotly", "scipy")
