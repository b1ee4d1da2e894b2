"""Run directories in, one self-contained HTML page out; reads files only, never imports torch."""
