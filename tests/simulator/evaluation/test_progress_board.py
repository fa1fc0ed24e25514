"""Signs of life and progress, without Ray: the board is called as its actor would be."""

from simulator.evaluation.progress_board import ProgressBoard, Reporter
from tests.simulator.evaluation.fake_actor import Handle


def test_silence_is_told_by_the_clock_of_the_board():
    now = [10.0]
    board = ProgressBoard(lambda: now[0])
    board.heartbeat("a")
    now[0] = 13.0
    board.heartbeat("b")
    now[0] = 14.5
    assert board.seconds_since_heartbeat() == {"a": 4.5, "b": 1.5}
    board.forget("a")
    assert board.seconds_since_heartbeat() == {"b": 1.5}


def test_progress_is_no_sign_of_life_and_a_sign_of_life_no_progress():
    board = ProgressBoard()
    board.progress("a", 0.25)
    board.heartbeat("b")
    assert board.done() == {"a": 0.25} and set(board.seconds_since_heartbeat()) == {"b"}


def test_a_worker_reports_its_share_at_most_once_a_second():
    board = ProgressBoard()
    reporter = Reporter(Handle(board), "a")
    for done in (25, 50, 75):
        reporter.progress(done, 100, loss=1.0)
    assert board.done() == {"a": 0.25} and not board.seconds_since_heartbeat()


def test_without_a_board_nothing_is_said():
    reporter = Reporter()
    reporter.heartbeat()
    reporter.progress(1, 2, 0.0)
