"""Who is told of a Ctrl-C, and who handles the next."""

import signal
import threading

import pytest

from fusionadvisor.interrupts import held, twice

INT = signal.SIGINT


def test_held_notes_it_and_puts_the_handler_back() -> None:
    before = signal.getsignal(INT)
    with held() as pressed:
        signal.raise_signal(INT)
        assert pressed == [INT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)  # pressed again
    assert signal.getsignal(INT) is before
    with held() as pressed:
        pass
    assert pressed == []
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(INT)


def test_the_program_raises_the_first_and_is_ended_by_the_next() -> None:
    with twice():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)
        assert signal.getsignal(INT) is signal.SIG_DFL
        with held():  # one was pressed already: the next still ends it
            assert signal.getsignal(INT) is signal.SIG_DFL
    assert signal.getsignal(INT) is signal.default_int_handler


def test_one_that_was_held_is_the_first() -> None:
    with twice():
        with held() as pressed:
            signal.raise_signal(INT)
        assert pressed
        assert signal.getsignal(INT) is signal.SIG_DFL
    assert signal.getsignal(INT) is signal.default_int_handler


def test_the_users_own_handler_stays() -> None:
    heard = []
    before = signal.signal(INT, lambda number, _: heard.append(number))
    try:
        with twice(), held() as pressed:
            signal.raise_signal(INT)
        assert (heard, pressed) == ([INT], [])
    finally:
        signal.signal(INT, before)


def test_other_threads_set_no_handler() -> None:
    failures: list[Exception] = []

    def work() -> None:
        try:
            with twice(), held():
                pass
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
