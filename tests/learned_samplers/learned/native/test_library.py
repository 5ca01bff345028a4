"""Where the compiled code comes from, and what is said where there is none."""

import stat
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from learned_samplers.learned.native import build, kernel, library


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """As in a new process of a package without compiled code, on a machine with an empty cache; compiling is quick."""
    monkeypatch.setattr(kernel, "_loaded", [])
    monkeypatch.setattr(library, "FOLDER", tmp_path / "package")
    monkeypatch.setattr(build, "_FLAGS", ("-std=c++17", "-O0", "-fPIC", "-shared", "-pthread"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(library.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


@pytest.fixture
def compiler():
    if build.compiler() is None:
        pytest.skip("no C++ compiler was found")


def without_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")


def own_level():
    capability = torch.backends.cpu.get_cpu_capability()
    return capability if capability in build.levels() else "DEFAULT"


def libraries(folder):
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_without_a_compiler_one_line_says_so_once(monkeypatch):
    without_compiler(monkeypatch)
    with pytest.warns(RuntimeWarning, match="slower steps in torch.*no C\\+\\+ compiler was found") as caught:
        assert kernel.native_library() is None
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel.native_library() is None


def test_a_compiler_that_fails_is_quoted(monkeypatch, fresh):
    fake = fresh / "broken-compiler"
    fake.write_text("#!/bin/sh\necho 'l2e.cpp:1: error: no such luck' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.warns(RuntimeWarning, match="no such luck"):
        assert kernel.native_library() is None


def test_the_environment_turns_it_off_without_a_word(monkeypatch):
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "0")
    assert kernel.native_library() is None


@pytest.mark.usefixtures("compiler")
def test_it_is_compiled_once_and_kept(monkeypatch, fresh):
    assert kernel.native_library() is kernel.native_library()
    assert len(libraries(fresh / "cache")) == 1
    monkeypatch.setattr(kernel, "_loaded", [])
    without_compiler(monkeypatch)
    assert kernel.native_library() is not None


@pytest.mark.usefixtures("compiler")
def test_a_damaged_file_is_replaced_and_what_the_package_brings_is_taken_first(monkeypatch, fresh):
    kept = fresh / "cache" / "learned_samplers" / "native" / build.library_name(own_level())
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"not a library")
    assert kernel.native_library() is not None
    assert kept.stat().st_size > 1000
    (fresh / "package").mkdir()
    kept.rename(fresh / "package" / kept.name)
    monkeypatch.setattr(kernel, "_loaded", [])
    without_compiler(monkeypatch)
    assert kernel.native_library() is not None
    assert not libraries(fresh / "cache")


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_written_to(monkeypatch, fresh):
    (fresh / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh / "file"))
    assert kernel.native_library() is not None


@pytest.mark.usefixtures("compiler")
def test_several_compile_at_once(fresh):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(build.compile_library, ["DEFAULT"] * 2, [fresh / "cache"] * 2))
    assert paths[0] == paths[1]
    assert libraries(fresh / "cache") == [paths[0].name]
    assert [path.name for path in (fresh / "cache").iterdir()] == [paths[0].name]


def test_another_source_or_compilation_has_another_name(monkeypatch, tmp_path):
    names = {build.library_name(level) for level in build.levels()}
    assert len(names) == len(build.levels())
    monkeypatch.setattr(build, "_FLAGS", ("-O1",))
    names |= {build.library_name("DEFAULT")}
    (tmp_path / "l2e.cpp").write_text("int other;")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    names |= {build.library_name("DEFAULT")}
    assert len(names) == len(build.levels()) + 2
