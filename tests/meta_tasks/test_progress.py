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


@pytest.mark.parametrize(
    ("total", "done", "seconds", "lines"),
    [
        (10_000, 10_000, 0.1, 21),  # one for every twentieth part, and the last
        (500, 500, 0.0, 1),  # quick work has its last line alone
        (10**6, 100, 30.0, 11),  # a slow run is not silent
    ],
)
def test_lines_come_now_and_then(clock, capsys, total, done, seconds, lines):
    with progress(total=total, desc="work") as bar:
        advance(bar, clock, done, seconds)
    written = capsys.readouterr().err
    assert len(written.splitlines()) == lines
    assert "\r" not in written
    assert written.splitlines()[-1].startswith(f"work: {100 * done // total:3d}%")


def test_work_within_work_leaves_nothing(clock, capsys):
    assert list(progress(range(500), leave=False)) == list(range(500))
    assert capsys.readouterr().err == ""


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
