"""Progress in a file: few whole lines, the last one at the end; on a terminal tqdm's own bar."""

import io
import sys

import pytest
from tqdm import tqdm

from meta_tasks import progress as module
from meta_tasks.progress import Lines, progress


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def advance(bar, clock, steps, seconds):
    for _ in range(steps):
        clock.now += seconds
        bar.update()
        bar.refresh()


def test_a_long_run_writes_a_line_for_every_twentieth_part(clock, capsys):
    with progress(total=10_000, desc="long") as bar:
        advance(bar, clock, 10_000, 0.1)
    written = capsys.readouterr().err
    lines = written.splitlines()
    assert len(lines) == 21
    assert "\r" not in written
    assert [line.split("%")[0] for line in lines[:3]] == ["long:   5", "long:  10", "long:  15"]
    assert lines[-1].startswith("long: 100%")


def test_quick_work_has_its_last_line_alone(clock, capsys):
    assert list(progress(range(500), desc="quick")) == list(range(500))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("quick: 100%")


def test_work_within_work_leaves_nothing(clock, capsys):
    for _ in progress(range(500), leave=False):
        pass
    assert capsys.readouterr().err == ""


def test_a_slow_run_is_not_silent(clock, capsys):
    with progress(total=10**6) as bar:
        advance(bar, clock, 100, 30.0)
    assert len(capsys.readouterr().err.splitlines()) == 10 + 1


def test_messages_do_not_disturb_the_lines(clock, capsys):
    with progress(total=3, desc="work") as bar:
        bar.update()
        tqdm.write("a message", file=sys.stderr)
        bar.update(2)
    message, last = capsys.readouterr().err.splitlines()
    assert message == "a message"
    assert last.startswith("work: 100%")


def test_a_terminal_has_the_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress(total=1) as bar:
        assert not isinstance(bar, Lines)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress(total=1) as bar:
        assert isinstance(bar, Lines)
