"""Runs scenarios in one pair of processes of a gloo group on the CPU, which is slow to start."""

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

_MEETING = """
import sys, torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)

def refused(error, call):
    try:
        call()
    except error as caught:
        return str(caught)
    raise AssertionError("nothing was raised")
"""


def outcomes(folder: Path, preamble: str, scripts: Mapping[str, str], *, each: str = "") -> dict[str, str]:
    """The error of each scenario by its name, "" for none.

    Args:
        folder: empty, for both processes.
        preamble: what all scenarios need; ``rank``, ``folder``, ``torch``, ``dist`` and ``refused`` are there.
        scripts: the scenarios.
        each: what is done before each of them.
    """
    code = _MEETING + preamble + "\nimport traceback\n"
    for name, script in scripts.items():
        code += f"_error = ''\ntry:\n{textwrap.indent(each + script, '    ')}"
        code += "\nexcept BaseException:\n    _error = traceback.format_exc()\n"
        code += f"open(f'{{folder}}/{name}.{{rank}}.txt', 'w').write(_error)\n"
    code += "dist.destroy_process_group()\n"
    command = [sys.executable, "-W", "ignore", "-c", code]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder)], cwd=Path(__file__).parents[1]) for rank in range(2)
    ]
    try:
        for process in processes:
            process.wait(timeout=300)
    finally:
        for process in processes:
            process.kill()
    files = {name: [folder / f"{name}.{rank}.txt" for rank in range(2)] for name in scripts}
    return {n: "".join(f.read_text() if f.exists() else "it never ended\n" for f in fs) for n, fs in files.items()}
