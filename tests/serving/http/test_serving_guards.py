"""Who may ask: names, tokens, pages of other sites, and what every answer carries."""

from __future__ import annotations

import time

import pytest
from places import PATIENCE

from metavib.core.errors import UserError
from metavib.serving.http.guards import access_for, is_loopback

EVERYWHERE = "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "::1", "localhost"])
def test_what_loopback_is(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.168.1.2", "example.org", ""])
def test_what_loopback_is_not(host):
    assert not is_loopback(host)


def test_other_machines_need_a_token_or_words():
    with pytest.raises(UserError, match="--token"):
        access_for(EVERYWHERE, None, [], anyone=False)
    assert access_for(EVERYWHERE, "long-enough", [], anyone=False).token == "long-enough"  # noqa: S105
    assert access_for(EVERYWHERE, None, [], anyone=True).token is None
    assert access_for(EVERYWHERE, None, ["example.org"], anyone=True).hosts == {"example.org"}
    assert access_for("127.0.0.1", None, [], anyone=False).hosts == {"localhost", "127.0.0.1", "::1"}


@pytest.mark.parametrize("token", ["", "short", "with a space", "wörter-und-mehr", "line\nbreak"])
def test_tokens_that_cannot_be_sent_or_are_guessed_are_refused(token):
    with pytest.raises(UserError, match="token"):
        access_for("127.0.0.1", token, [], anyone=False)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "",
            "[::2]:80",
            "[::1].evil.com",
            "[::1]x",
        ),
        *("[::1]:80:80", "[localhost]", "::1", "localhost:evil.com", "localhost:80x", "localhost:80:80"),
        *("evil.com@localhost", "localhost:80@evil.com", "localhost/evil.com", " localhost x"),
    ],
)
def test_a_name_that_points_here_is_refused(running, host):
    reply = running.ask("GET", "/model", headers={"Host": host})
    assert reply.status == 403
    assert "--allow-host" in reply.json["what_to_do"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:99", "[::1]", "localhost:"]
)
def test_names_of_this_machine_are_answered(running, host):
    assert running.ask("GET", "/model", headers={"Host": host}).status == 200


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization", "Content-Type"])
def test_a_header_that_decides_something_comes_once(start, name):
    server = start(token="the-right-one")  # noqa: S106
    headers = ["Host: localhost", "Authorization: Bearer the-right-one", "Connection: close"]
    values = {"Host": "evil.com", "Origin": "http://localhost"}
    for _ in range(1 if name in ("Host", "Authorization") else 2):
        headers.append(f"{name}: {values.get(name, 'x')}")
    for lines in (headers, headers[::-1]):
        text = "".join(f"{line}\r\n" for line in lines)
        received = server.raw(f"GET /model HTTP/1.1\r\n{text}\r\n".encode())
        assert received.startswith(b"HTTP/1.1 400")
        assert b"twice" in received


def test_pages_of_other_sites_are_refused(running, image):
    headers = {"Content-Type": "image/png", "Origin": "https://evil.example"}
    assert running.ask("POST", "/predict", image(), headers).status == 403
    own = {"Content-Type": "image/png", "Origin": running.address}
    assert running.ask("POST", "/predict", image(), own).status == 200
    preflight = running.ask("OPTIONS", "/predict", headers={"Origin": "https://evil.example"})
    assert preflight.status == 403
    assert not any(name.startswith("access-control") for name in preflight.headers)


def test_a_token_opens_all_and_nothing_else_does(start, image):
    server = start(token="the-right-one")  # noqa: S106
    for path in ("/", "/page.js", "/page.css", "/health", "/ready"):
        assert server.ask("GET", path).status == 200
    for path in ("/model", "/metrics", "/openapi.json", "/nothing"):
        assert server.ask("GET", path).status == 401
    for given in (
        "",
        "the-right-one",
        "Bearer",
        "Bearer the-right-on",
        "Bearer the-right-one2",
        "Basic the-right-one",
    ):
        reply = server.ask("POST", "/predict", image(), {"Content-Type": "image/png", "Authorization": given})
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "the-right" not in reply.body.decode()
    right = {"Content-Type": "image/png", "Authorization": "bearer the-right-one"}
    assert server.ask("POST", "/predict", image(), right).status == 200
    assert server.ask("GET", "/model", headers=right).status == 200


def test_every_answer_carries_the_headers(running, image):
    for reply in (
        running.ask("GET", "/"),
        running.send(image()),
        running.send(b"x"),
        running.ask("GET", "/no"),
    ):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        assert "server" not in reply.headers


def test_a_fault_of_ours_is_told_without_its_inside(start, image, monkeypatch, caplog):
    server = start()

    def broken(*arguments):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("metavib.serving.http.service.answers_of", broken)
    reply = server.send(image())
    assert reply.status == 500
    assert "fault of metavib" in reply.json["what_to_do"]
    assert "secret" not in reply.body.decode()
    end = time.monotonic() + PATIENCE
    while "secret" not in caplog.text:  # it is logged after the answer
        assert time.monotonic() < end
        time.sleep(0.01)
