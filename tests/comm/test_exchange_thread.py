"""The executor of one thread."""

import threading
import time

import pytest

from torch_gnnscale.comm.exchange import OneThread


def test_calls_run_in_order_on_one_thread():
    thread, found = OneThread("one"), []
    futures = [thread.submit(lambda i: (found.append(i), threading.current_thread().name), i) for i in range(50)]
    assert {future.result()[1] for future in futures} == {"one"}
    assert found == list(range(50))
    thread.shutdown()


def test_errors_and_cancelled_calls():
    thread, begun, go = OneThread("one"), threading.Event(), threading.Event()
    first = thread.submit(lambda: (begun.set(), go.wait()))
    begun.wait()
    failing, cancelled = thread.submit(lambda: 1 / 0), thread.submit(pytest.fail, "it was cancelled")
    after = thread.submit(lambda: 5)
    assert cancelled.cancel()
    assert not first.cancel()
    assert thread.end(0.01) is False
    go.set()
    with pytest.raises(ZeroDivisionError):
        failing.result()
    assert after.result(10) == 5
    assert thread.end(10.0) is True
    with pytest.raises(RuntimeError, match=r"^expected the stores of an open part, found that it was closed$"):
        thread.submit(pytest.fail, "it has ended").result()


def test_what_a_call_refers_to_is_dropped_after_it():
    class Kept:
        def __del__(self):
            dropped.set()

    dropped, thread = threading.Event(), OneThread("one")
    thread.submit(lambda kept: None, Kept()).result()
    assert dropped.wait(5)
    thread.shutdown()


def test_the_garbage_collector_may_submit_at_any_time():
    """ThreadPoolExecutor.submit holds a lock that all pools share; a finalizer that runs then must not wait for it."""
    from concurrent.futures import thread as pools

    executor = OneThread("one")
    with pools._global_shutdown_lock:
        begin = time.monotonic()
        assert executor.submit(lambda: 5).result(5) == 5
        assert time.monotonic() - begin < 5
    executor.shutdown()
