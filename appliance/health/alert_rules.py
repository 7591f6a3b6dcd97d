"""Writes the conditions that have a rule as a file of alert rules for Prometheus.

``python -m appliance.health.alert_rules > systemd/prometheus/alerts.yml`` makes the file of this repository again.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from .conditions import CONDITIONS, Condition

HEAD: Final = """\
# Alert rules for Prometheus: rule_files: [/etc/prometheus/appliance-alerts.yml].  README.md beside the unit has, for
# each symptom, which command shows more.  The job must scrape metrics.listen, and its name have "appliance" in it.
# Written by: python -m appliance.health.alert_rules
groups:
  - name: appliance
    rules:
"""


def rules() -> str:
    """The text of the file."""
    return HEAD + "".join(map(_rule, CONDITIONS))


def _rule(condition: Condition) -> str:
    """The lines of a condition; JSON's quotes are YAML's."""
    rule = condition.rule
    if rule is None:
        return ""
    wait = f"        for: {rule.wait}\n" if rule.wait else ""
    return (
        f"      - alert: Appliance{condition.name}\n"
        f"        expr: {rule.expr}\n{wait}"
        f"        labels: {{severity: {condition.level}}}\n"
        "        annotations:\n"
        f"          summary: {json.dumps(rule.summary)}\n"
        f"          action: {json.dumps(condition.todo)}\n"
        f'          page: "systemd/README.md#{condition.page}"\n'
    )


if __name__ == "__main__":
    sys.stdout.write(rules())
