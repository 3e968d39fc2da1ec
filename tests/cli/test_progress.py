import io

from hypothesis import given, strategies as st

from traceanalyzer.cli.answering import progress
from traceanalyzer.run.read import OfAllFiles


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _file(tmp_path, size=1000):
    path = tmp_path / "a"
    path.write_bytes(bytes(size))
    return str(path)


def test_no_progress_without_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress([_file(tmp_path)], quiet=False) as meter:
        assert meter is None


def test_no_progress_when_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr", _Terminal())
    with progress([_file(tmp_path)], quiet=True) as meter:
        assert meter is None


def test_progress_appears_after_a_delay_and_is_erased(tmp_path, monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress([_file(tmp_path)], quiet=False) as meter:
        meter(500, 1000)
    assert terminal.getvalue() == ""
    monkeypatch.setattr("traceanalyzer.cli.answering.DELAY_SECONDS", 0)
    with progress([_file(tmp_path)], quiet=False) as meter:
        meter(500, 1000)
        meter(1000, 1000)
    screen = terminal.getvalue()
    assert all(
        text in screen for text in ("Reading", " 50%", "0.5/1.0 kB", "remaining", "Analyzing")
    )
    assert screen.endswith("\x1b[2K")  # erases the line


@given(st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=5), max_size=5))
def test_bytes_of_all_files_are_summed(files):
    size = sum(map(sum, files))
    sums = [0]

    def show(done, total):
        assert sums[-1] <= done <= total == size
        sums.append(done)

    meter = OfAllFiles(show, size)
    for steps in files:
        done = 0
        for step in steps:
            done += step
            meter(done, sum(steps))
    assert sums[-1] == size
