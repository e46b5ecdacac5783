"""`metavib serve` as a process: its line, its exit, its refusals."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from places import PATIENCE

pytestmark = pytest.mark.processes


@pytest.fixture
def served(program: list[str], finished: Any) -> Iterator[Any]:
    """A server process, its port, and its first line for people."""
    processes = []

    def start(*arguments: str) -> tuple[subprocess.Popen[str], int, str]:
        command = [*program, "serve", str(finished.run), "--port", "0", "--json", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        address = json.loads(process.stdout.readline())["address"]
        return process, int(address.rpartition(":")[2]), process.stderr.readline()

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, headers: Any = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_what_runs_refuses_what_comes_and_exits_0(served, image, number):
    process, port, line = served("--max-seconds", "600")
    assert line.endswith(f"is served at http://127.0.0.1:{port} (Ctrl-C stops)\n")
    content = image()
    assert ask(port, "POST", "/predict", content, {"Content-Type": "image/png"})[0] == 200
    # A request of which half has come when the stop comes.
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    head += f"Content-Length: {len(content)}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
        link.sendall(head.encode())
        assert link.recv(10_000).startswith(b"HTTP/1.1 100")  # it is being read
        link.sendall(content[:50])
        process.send_signal(number)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
            except ConnectionRefusedError:
                break
            time.sleep(0.02)
        else:
            pytest.fail("new connections are still taken")
        link.sendall(content[50:])
        answer = link.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 200"), answer
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == ""


HANGS = """
import sys, threading, time
from metavib.interfaces.cli.main import main
from metavib.interfaces.cli.commands import serve
from metavib.serving.http.limits import Limits
from metavib.serving.predictor import Predictor

honest = Predictor.decode
def decode(self, content, name):
    if name != "warm-up":
        time.sleep(600)
    return honest(self, content, name)

Predictor.decode = decode
serve.limits_of = lambda arguments: Limits(stop_seconds=1)
sys.exit(main(sys.argv[1:]))
"""


def test_a_stop_does_not_wait_for_a_decoder(program, finished, image):
    command = [program[0], "-c", HANGS, "serve", str(finished.run), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        port = int(json.loads(process.stdout.readline())["address"].rpartition(":")[2])
        content = image()
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
            head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
            link.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            while b"metavib_waiting_images 1" not in ask(port, "GET", "/metrics")[1]:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answer = link.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the server is stopping" in answer
        assert process.wait(PATIENCE) == 0
        assert "Traceback" not in process.stderr.read()


def test_many_clients_at_once_get_their_own_answers(served, image):
    _, port, _ = served()
    contents = [image(seed=seed) for seed in range(16)]
    alone = [
        json.loads(ask(port, "POST", "/predict", one, {"Content-Type": "image/png"})[1]) for one in contents
    ]
    wrong: list[int] = []

    def client(number: int) -> None:
        for _ in range(5):
            status, body = ask(port, "POST", "/predict", contents[number], {"Content-Type": "image/png"})
            said, expected = json.loads(body)["predictions"][0], alone[number]["predictions"][0]
            close = abs(said["entropy"] - expected["entropy"]) < 1e-4
            if status != 200 or said["label"] != expected["label"] or not close:
                wrong.append(number)

    threads = [threading.Thread(target=client, args=[number]) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_token_may_come_from_the_surroundings(served, image, monkeypatch):
    monkeypatch.setenv("METAVIB_TOKEN", "from-outside")
    _, port, _ = served()
    assert ask(port, "GET", "/model")[0] == 401
    assert ask(port, "GET", "/model", headers={"Authorization": "Bearer from-outside"})[0] == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--anyone-may-ask"),  # noqa: S104
        (["--host", "::"], "--token"),
        (["--token", "short"], "at least 8"),
        (["--port", "70000"], "--port"),
        (["--host", "no.such.host.invalid", "--anyone-may-ask"], "--host"),
        (["--max-bytes", "0"], "--max-bytes"),
        (["--max-pixels", "-1"], "--max-pixels"),
        (["--max-images", "0"], "--max-images"),
        (["--max-seconds", "0"], "--max-seconds"),
        (["--coverage", "2"], "coverage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_served_is_refused_in_one_line(refused, finished, arguments, said):
    assert said in refused("serve", finished.run, *arguments)


def test_a_port_that_is_taken_is_named(refused, finished):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refused("serve", finished.run, "--port", port)


def test_without_the_extra_the_error_names_it(refused, finished, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "metavib[serve]" in refused("serve", finished.run, "--port", "0")


def test_no_model_is_said(refused, tmp_path):
    assert "model" in refused("serve", tmp_path / "nothing")
