"""The order in which streams wait for each other, and for how much work the host waits."""

import pickle
import threading

import pytest
import torch

from torch_gnnscale.feature.tiered_rows import StreamTime
from torch_gnnscale.loader import execution as loader_streams
from torch_gnnscale.loader.execution import Streams

GPU = torch.device("cuda", 0)


def in_a_thread(run) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.parametrize("one", [False, True])
def test_each_thread_has_a_stream_of_a_pool(recorded_cuda, one):
    pool, found = [], []
    for _ in range(2):
        streams = Streams(GPU, pool, 2, one)
        begun = recorded_cuda.events[-1].name

        def work(streams=streams):
            with streams.work():
                found.append(torch.cuda.current_stream().name)

        work()
        in_a_thread(work)
        work()
        used = ["stream 1"] if one else ["stream 1", "stream 2"]
        assert found == ["stream 1", used[-1], "stream 1"]
        assert recorded_cuda.taken() == [f"consumer records {begun}", *(f"{name} waits for {begun}" for name in used)]
        found.clear()
    assert len(pool) == len(used)  # also of the second


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_host_waits_for_what_was_taken_long_ago(recorded_cuda, ahead, monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append((len(tensor), stream)))
    streams = Streams(GPU, [], ahead)
    taken = []
    recorded_cuda.taken()
    for number in range(5):
        with streams.work():
            handed = streams.hand([{"x": torch.ones(number)}, [torch.ones(7)]])
        ready = recorded_cuda.events[-1].name
        assert recorded_cuda.taken()[-1] == f"stream 1 records {ready}"
        recorded.clear()
        assert streams.take(handed) is handed.batches
        taken.append(recorded_cuda.events[-1].name)
        waits = [f"host waits for {taken[number - ahead - 1]}"] if number > ahead else []
        assert recorded_cuda.taken() == [f"consumer waits for {ready}", f"consumer records {taken[-1]}", *waits]
        assert recorded == [(number, recorded_cuda.current), (7, recorded_cuda.current)]


def test_time_is_that_of_finished_work(recorded_cuda):
    time = StreamTime()
    for number in range(2):
        with time.measure(GPU):
            assert recorded_cuda.taken() == [f"consumer records event {2 * number}"]
        begin, end = recorded_cuda.events[2 * number :]
        begin.at, end.at = 100.0, 100.0 + 30 * (number + 1)
        assert recorded_cuda.taken() == [f"consumer records event {2 * number + 1}"]
    assert time.seconds() == 0
    recorded_cuda.events[3].done = True  # of the second, while the first is not finished
    assert time.seconds() == 0
    recorded_cuda.events[1].done = True
    assert time.seconds() == 0.09
    assert recorded_cuda.taken() == []
    with time.measure(GPU):
        pass
    recorded_cuda.events[5].at = 10.0
    assert time.seconds(wait=True) == pytest.approx(0.1)
    assert recorded_cuda.taken()[-1] == "host waits for event 5"
    assert time.seconds(wait=True) == pytest.approx(0.1)
    assert pickle.loads(pickle.dumps(time)).seconds() == 0


def test_threads_work_in_the_modes_of_who_waits(recorded_cuda, monkeypatch):
    found = []

    def modes(item):
        found.append((item, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.cuda.current_stream()))

    assert loader_streams.as_here(modes) is modes
    for mode, expected in ((torch.inference_mode, (True, False)), (torch.no_grad, (False, False))):
        with mode():
            there = loader_streams.as_here(modes)
        in_a_thread(lambda there=there: there(3))
        assert found.pop() == (3, *expected, recorded_cuda.current)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    consumer = recorded_cuda.current
    there = loader_streams.as_here(modes)
    with torch.cuda.stream(recorded_cuda.make_stream("other")):
        there(4)
    assert found.pop() == (4, False, True, consumer)
