"""The aliases of the other packages: the same modules, and none is imported with the library."""

import subprocess
import sys

CODE = """
import sys, learned_samplers
assert not {"pretrained", "meta_tasks"} & set(sys.modules)
import learned_samplers.meta.tasks.task
from learned_samplers.meta import tasks
from learned_samplers import meta, pretrained
from learned_samplers.pretrained import names
import meta_tasks.tasks.task, pretrained as direct
assert meta is meta_tasks and pretrained is direct and names is direct.names
assert tasks is meta_tasks.tasks and learned_samplers.meta.tasks.task is meta_tasks.tasks.task
assert meta_tasks.tasks.task.__spec__.name == "meta_tasks.tasks.task"
try:
    import learned_samplers.meta.nothing
except ModuleNotFoundError as error:
    assert "meta_tasks.nothing" in str(error)
else:
    raise AssertionError
"""


def test_the_aliases_are_the_packages():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
