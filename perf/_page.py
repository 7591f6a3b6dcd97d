"""Writes the results in ``results`` into README.md.  ``make bench`` runs it; no figure there is typed."""

from __future__ import annotations

from pathlib import Path

from appliance.bench import page

HERE = Path(__file__).parent

if __name__ == "__main__":
    (HERE / "README.md").write_text(page.rewrite(HERE / "README.md", page.stored(HERE / "results"), HERE / "results"))
