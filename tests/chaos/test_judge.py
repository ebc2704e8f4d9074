"""The judge finds every kind of broken promise, and none where there is none. The ledgers are written by hand."""

import pytest

from tests.chaos import _judge
from tests.chaos._ledger import Ledger, Line, read

LEASE_S = 1.0


class Book:
    """A process's ledger, made up: each method is one call that lasts 0.1 s, from `at` on."""

    def __init__(self, who, lines):
        self.lines = lines.setdefault(who, [])

    def call(self, at, what, end, **data):
        """A call; without an end, its process was killed inside it."""
        self.lines.append(Line(at, what, {"bound": 3.0, **data}))
        if end is not None:
            self.lines.append(Line(at + 0.1, "end", end))

    def write(self, at, tags, index=None, error=None):
        """A write: acknowledged, or failed, or neither."""
        self.call(at, "write", {"index": index} if index else error and {"error": error}, tags=tags)

    def draw(self, at, lease, tags, acks=(), wrong=(), index=None):
        """A draw; a tag's index is 10 less than the tag."""
        index = index or [tag - 10 for tag in tags]
        self.call(at, "draw", {"lease": lease, "tags": tags, "index": index, "wrong": list(wrong)}, acks=list(acks))

    def end(self, at, verb, lease, applied=1):
        """An ack or a release: applied or late; None: its outcome is unknown."""
        known = {"applied": applied, "late": 1 - applied} if applied is not None else {"error": "OutcomeUnknownError"}
        self.call(at, verb, known, lease=lease)


@pytest.fixture
def books():
    """Gives `books(who)`; a record 11 and a record 12 were written, in one call."""
    lines = {}
    made = lambda who: Book(who, lines)  # noqa: E731
    made("writer").write(0, [11, 12], [1, 2])
    made.lines = lines
    return made


def said(books, faults=()):
    """The first word or two of each breach."""
    evidence = _judge.gather(books.lines, list(faults))
    return [breach.split(":")[0] for breach in _judge.breaches(evidence, LEASE_S)]


def drained(books, tags, at=100):
    """The last drain takes these tags."""
    books("drain").draw(at, "last", tags)
    books("drain").end(at + 1, "ack", "last")


def test_nothing_is_said_of_a_good_run(books):
    """Written, drawn, acknowledged; another batch released, drawn again, acknowledged; one run out; one refused."""
    a, b = books("a"), books("b")
    books("w2").write(0, [13, 14], [3, 4])
    books("w3").write(0, [15], error="ConnectionLostError")
    a.draw(1, "a1", [11, 12])
    a.end(2, "ack", "a1")
    b.draw(1, "b1", [13, 14])
    b.end(1.5, "release", "b1")
    a.draw(1.7, "a2", [13])
    b.draw(2.8, "b2", [13, 14])
    b.end(3, "ack", "b2")
    assert said(books) == []


def test_a_lost_record_is_found(books):
    drained(books, [11])
    assert said(books) == ["acknowledged, and lost"]


def test_a_write_that_was_refused_must_not_be_there(books):
    books("w2").write(0, [13], error="ConnectionLostError")
    drained(books, [11, 12, 13])
    assert said(books) == ["refused, and yet there"]


@pytest.mark.parametrize("there", [[], [13, 14]])
@pytest.mark.parametrize("error", [None, "OutcomeUnknownError"])
def test_an_unknown_write_may_be_there_or_not(books, there, error):
    books("w2").write(0, [13, 14], error=error)
    drained(books, [11, 12, *there])
    assert said(books) == []


def test_an_unknown_write_in_part_is_found(books):
    books("w2").write(0, [13, 14], error="OutcomeUnknownError")
    drained(books, [11, 12, 13])
    assert said(books) == ["written in part"]


def test_a_write_applied_twice_is_found(books):
    drained(books, [11, 12])
    books("a").draw(50, "a1", [11], index=[5])
    books("a").end(51, "ack", "a1")
    assert {"another index", "stored twice 11 under 1 and 5", "acknowledged 2 times"} & set(said(books))


def test_a_record_of_nobody_is_found(books):
    drained(books, [11, 12, 99])
    assert said(books) == ["nobody wrote 99"]


def test_other_bytes_are_found(books):
    books("a").draw(1, "a1", [11, 12], wrong=[12])
    books("a").end(2, "ack", "a1")
    assert said(books) == ["other bytes"]


def test_a_record_twice_in_a_batch_is_found(books):
    drained(books, [11, 12, 12])
    assert "twice in one batch" in said(books)


def test_an_index_of_two_records_is_found(books):
    books("w2").write(0, [13], [1])
    books("a").draw(1, "a1", [13], index=[1])
    books("a").end(2, "ack", "a1")
    drained(books, [11, 12])
    assert said(books) == ["index 1 means 13 and 11"]


def test_a_record_that_was_acknowledged_must_not_come_again(books):
    books("a").draw(1, "a1", [11, 12])
    books("a").end(1.2, "ack", "a1")
    books("b").draw(5, "b1", [11, 12])
    assert said(books) == ["handed out again"] * 2


def test_two_acknowledgements_are_found(books):
    books("a").draw(1, "a1", [11, 12])
    books("b").draw(1, "b1", [11, 12])
    books("a").end(2, "ack", "a1")
    books("b").end(2, "ack", "b1")
    assert said(books) == ["acknowledged 2 times"] * 2


def test_a_record_on_lease_must_not_be_handed_out(books):
    books("a").draw(1, "a1", [11, 12])
    books("b").draw(1.3, "b1", [11, 12])
    books("b").end(2, "ack", "b1")
    assert said(books) == ["handed out again"] * 2


def test_a_record_comes_back_when_its_lease_runs_out(books):
    books("a").draw(1, "a1", [11, 12])
    drained(books, [11, 12], at=2)
    assert said(books) == []


@pytest.mark.parametrize(("at", "found"), [(1.2, ["handed out again"] * 2), (2.5, [])])
def test_a_release_frees_and_not_before(books, at, found):
    books("a").draw(1, "a1", [11, 12])
    books("a").end(1.5, "release", "a1")
    books("b").draw(at, "b1", [11, 12])
    books("b").end(3, "ack", "b1")
    assert said(books) == found


def test_a_record_that_nobody_acknowledged_is_found(books):
    books("a").draw(1, "a1", [11, 12])
    books("a").end(1.5, "ack", "a1", applied=0)
    assert said(books) == ["never acknowledged"] * 2


@pytest.mark.parametrize("back", [[], [11, 12]])
def test_a_doubtful_lease_comes_back_whole_or_not_at_all(books, back):
    books("a").draw(1, "a1", [11, 12])
    books("a").end(1.5, "ack", "a1", applied=None)
    if back:
        drained(books, back)
    assert said(books) == []


def test_a_doubtful_lease_in_part_is_found(books):
    books("a").draw(1, "a1", [11, 12])
    books("a").draw(1.5, "a2", [12], acks=["a1"])
    drained(books, [12])
    assert "came back in part" in said(books)


def test_counters_must_say_what_the_ledgers_say(books):
    """After the drain everything was consumed, and each record is counted as handed out once."""
    drained(books, [11, 12])
    evidence = _judge.gather(books.lines, [])
    good = {"write_count": 2, "consumed": 2, "samples_returned": 2, "size": 0, "leased": 0, "evicted": 0, "removed": 0}
    assert list(_judge.totals(evidence, good)) == []
    for name, value in good.items():
        assert list(_judge.totals(evidence, good | {name: 7})) == [f"counter {name}: 7, and the ledgers say {value}"]


@pytest.mark.parametrize("end", [{"error": "ReplayTimeoutError"}, None])
def test_a_wait_beyond_its_bound_is_found(books, end):
    """Whether it came back too late, or was killed too late; the time that it was frozen does not count."""
    books("a").lines += [Line(1, "draw", {"bound": 3.0})] + ([Line(11, "end", end)] if end else [])
    faults = [Line(2, "frozen", {"who": "a"}), Line(4, "thawed", {"who": "a"}), Line(11, "killed", {"who": "a"})]
    found = _judge.waits(_judge.gather(books.lines, faults), now=11)["draw"]
    assert (found.longest, found.over) == (8, 5)


def test_a_ledger_is_read_as_it_was_written(tmp_path):
    Ledger(tmp_path, "a").note("write", tags=[1])
    (line,) = read(tmp_path)["a"]
    assert (line.event, line.data) == ("write", {"tags": [1]})
