"""Who asks hears once that a client has gone, and not any more once it is not needed."""

from metavib.serving.http.departure import Departure


def test_who_asked_hears_of_it():
    called: list[str] = []
    departure = Departure()
    forget = departure.when_gone(lambda: called.append("first"))
    forget()
    departure.when_gone(lambda: called.append("second"))
    assert not called
    departure.happens()
    assert called == ["second"]


def test_it_may_have_happened_before():
    called: list[str] = []
    departure = Departure()
    departure.happens()
    departure.when_gone(lambda: called.append("late"))()
    assert called == ["late"]
