"""Measure the laws of other packages' samplers, and of ours, on one Gaussian: reports/audit.md and audit.json.

    python tools/audit.py          # 2 to 3 minutes of two cores, with the installing where downloads are cached

Each package is installed at its newest version in an environment of its own under --cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import tyro
from experiments.audit.runner import AuditOptions, audit
from experiments.harness.output import command_line, explained


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` None takes those of the process."""
    with explained():
        options = tyro.cli(AuditOptions, args=arguments, description=__doc__)
        audit(options, command_line("audit", arguments))


if __name__ == "__main__":
    main()
