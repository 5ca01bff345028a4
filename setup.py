"""Compiles the C++ of learned_samplers/learned/native for the wheel, and makes README's links absolute.

Everything else is in pyproject.toml.

Without a compiler, or with LEARNED_SAMPLERS_NATIVE=0, the wheel is pure Python and holds the C++ as source, which
is compiled at its first use where that can be done; until then L2E takes its steps in Python.
"""

import importlib.util
import os
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_FOLDER = Path("learned_samplers", "learned", "native")
# By its path: the package itself needs torch, which is not there when a wheel is built.
_spec = importlib.util.spec_from_file_location("native_build", Path(__file__).parent / _FOLDER / "build.py")
native = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(native)


def description() -> str:
    """README whose relative links lead to this version in the source's repository, for an index page."""
    root = Path(__file__).parent
    source = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    version = re.search(r'^__version__ = "(.*)"', (root / "learned_samplers/__init__.py").read_text(), re.MULTILINE)[1]
    commit = "HEAD" if "dev" in version else f"v{version}"

    def absolute(link):
        view = "raw" if link[1].endswith(".png") else "blob"
        return f"]({source}/{view}/{commit}/{link[1]}"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)", absolute, (root / "README.md").read_text(encoding="utf-8"))


def compiles() -> bool:
    return os.environ.get("LEARNED_SAMPLERS_NATIVE") != "0" and native.compiler() is not None


class BuildPackages(build_py):
    def run(self):
        super().run()
        if self.editable_mode or not compiles():  # from a checkout it is compiled at its first use
            return
        with ThreadPoolExecutor() as pool:
            for problem in pool.map(self._compile, native.levels()):
                if problem:
                    print(f"warning: {problem}; L2E will take its slower steps in Python", file=sys.stderr)

    def _compile(self, level):
        try:
            native.compile_library(level, Path(self.build_lib) / _FOLDER)
        except (native.BuildError, OSError) as error:
            return error


class BuildWheel(bdist_wheel):
    """For the platform, but for any Python 3: the library knows nothing of Python."""

    def get_tag(self):
        return super().get_tag() if self.root_is_pure else ("py3", "none", super().get_tag()[2])


class Package(Distribution):
    def has_ext_modules(self):
        return compiles()


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    distclass=Package,
    cmdclass={"build_py": BuildPackages, "bdist_wheel": BuildWheel},
)
