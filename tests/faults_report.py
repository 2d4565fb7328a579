"""Print the table of `make faults` from the report that the plugin wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: str) -> int:
    """Print one line an id and the sum; exit 1 if a test of any id failed."""
    report = json.loads(Path(path).read_text())
    for fault_id, entry in report.items():
        sys.stdout.write(f"{fault_id}  {entry['verdict']:<12}  {len(entry['tests'])} test(s)\n")
    passed = sum(e["verdict"] == "passed" for e in report.values())
    sys.stdout.write(f"{passed} of {len(report)} known faults have a passing test\n")
    return int(any(e["verdict"] == "failed" for e in report.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
