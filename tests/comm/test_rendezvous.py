"""What ranks do together besides their steps, without processes: what one rank of several decides and says."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from torch_gnnscale.comm import rendezvous as rendezvous_of
from torch_gnnscale.comm.exchange import Broken
from torch_gnnscale.comm.rendezvous import Rendezvous


class Asked(Exception):
    pass


LATE = (
    "did not come within 1 seconds to what the others do together (timeout=; a rank that is busy for longer needs a "
    "larger one)"
)


class Said:
    """What a rank tells the others, who have said ``heard``; ``silent``: who is gone."""

    def __init__(self, heard, silent):
        self.said, self.told, self.silent, self.found = [], heard, silent, {}

    def say(self, why, about, waited_for=""):
        self.said.append((why, about))

    def waited(self, about):
        return {}

    def heard(self, about):
        return self.told

    def gone(self):
        return self.silent

    def conclude(self, text, about):
        self.found[about] = text

    def concluded(self, about):
        return self.found.get(about, "")

    def together(self, make):
        return "made"


def rank_of(rank, world, heard=None, silent=""):
    """A rank of a group that is not there; each rank gathers what this one says, and None of the others."""
    rendezvous = Rendezvous(0, 1, 1.0)
    rendezvous.rank, rendezvous.world, rendezvous._liveness = rank, world, Said(heard or {}, silent)
    rendezvous.gather = lambda value: [value if place == rank else None for place in range(world)]
    return rendezvous


def failing(error):
    def make():
        raise error

    return make


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("wrong"), MemoryError("full")])
def test_errors_that_users_mend_name_the_rank(error):
    with pytest.raises(ValueError, match=f"^rank 1: {type(error).__name__}: {error}$"):
        rank_of(1, 3).all_made(failing(error))


def test_other_errors_are_raised_as_they_are():
    with pytest.raises(KeyError, match=r"^'name'$"):
        rank_of(1, 3).all_made(failing(KeyError("name")))


@pytest.mark.parametrize("error", [OSError("gone"), MemoryError("full"), KeyError("name")])
def test_a_rank_alone_raises_errors_as_they_are(error):
    with pytest.raises(type(error)) as raised:
        Rendezvous(0, 1, 1.0).all_made(failing(error))
    assert raised.value is error


def test_a_rank_alone_says_what_the_backend_says():
    assert Rendezvous(0, 1, 1.0).lost(Broken("closed")) == "closed"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_groups_wait_as_long_as_the_user_says(monkeypatch, backend):
    asked = []
    monkeypatch.setattr(rendezvous_of.dist, "new_group", lambda *given: asked.append(given))
    assert rendezvous_of._group([3], 7.5) is None
    rendezvous_of._group([1, 3], 7.5, backend)
    assert asked == [([1, 3], timedelta(seconds=7.5), backend)]


def test_each_topic_has_a_number_of_its_own():
    rendezvous = Rendezvous(0, 1, 1.0)
    assert len({0, rendezvous.topic(), rendezvous.topic()}) == 3


def test_a_rank_that_lost_the_others_says_so_about_what_it_did():
    rendezvous = rank_of(1, 3, {0: "", 2: "the disk is full"})
    assert rendezvous.lost(Broken("closed"), 7) == "rank 2: the disk is full"
    assert rendezvous._liveness.said == [("", 7)]


@pytest.mark.parametrize(
    ("silent", "why"),
    [("rank 2 is gone", "rank 2 is gone"), ("", f"rank 2 {LATE}")],
)
def test_ranks_that_say_nothing_are_gone_or_did_not_come(silent, why):
    assert rank_of(1, 3, {0: "", 1: ""}, silent).lost(Broken("closed")) == f"{why}: closed"


def test_a_rank_that_comes_too_late_hears_what_the_others_have_found():
    first, late = (rank_of(rank, 2, told) for rank, told in ((0, {0: ""}), (1, {0: "", 1: ""})))
    assert late.lost(Broken("closed"), 3) == "a rank failed: closed"
    first.lost(Broken("timed out"), 3)
    late._liveness.found = first._liveness.found
    assert late.lost(Broken("closed"), 3) == f"rank 1 {LATE}: closed"


@pytest.mark.parametrize("lost", [False, True])
def test_a_rank_that_leaves_says_why_unless_others_were_lost_before(lost):
    rendezvous = rank_of(1, 3, {2: "no room"})
    if lost:
        rendezvous.lost(Broken("closed"))
    rendezvous.leave("KeyError: 'no luck'")
    assert rendezvous._liveness.said == [("", 0) if lost else ("KeyError: 'no luck'", 0)]


@pytest.mark.parametrize(("rank", "files"), [(0, 5 + 3 + 5), (2, 5 + 3 + 1)])
def test_files_that_a_rank_opens_to_meet_the_others(rank, files, monkeypatch):
    def own_card(count):
        raise Asked(count)

    monkeypatch.setattr(rendezvous_of, "own_card", own_card)
    with pytest.raises(Asked, match=f"^{files}$"):
        Rendezvous(rank, 5, 1.0)


def test_files_of_the_groups_that_a_rank_is_in(monkeypatch):
    counts = []
    monkeypatch.setattr(rendezvous_of, "check_open_files", lambda count: counts.append(count) or SimpleNamespace())
    assert rank_of(2, 4).groups([[0, 1], [2, 3], [1, 2, 3]]) == "made"
    assert counts == [2 + 3 + 3 + 3]


def test_ranks_whose_cards_are_wrong_do_not_meet(monkeypatch):
    closed = []

    class Present:
        def __init__(self, rank, world, timeout):
            pass

        def come(self, own):
            return [own, own._replace(problem="no luck")]

        def close(self):
            closed.append(True)

    monkeypatch.setattr(rendezvous_of, "Liveness", Present)
    with pytest.raises(ValueError, match=r"^rank 1: no luck$"):
        Rendezvous(0, 2, 1.0)
    assert closed == [True]
