"""Models on the hub: put there and fetched again, over HTTP, from a stand-in for the hub on this machine."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from places import PATIENCE

import metavib
from metavib.core.errors import UserError
from metavib.serving import hub

pytestmark = pytest.mark.processes

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The few addresses of the hub that a download and an upload use; the files lie in `server.files`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Say nothing."""

    def do_HEAD(self):
        self._answer(send_body=False)

    def do_GET(self):
        self._answer()

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self._send({"url": f"{self.server.address}/someone/digits", "id": "someone/digits"})
        elif self.path == "/api/validate-yaml":
            self._send({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            asked = json.loads(content)["files"]
            self._send(
                {
                    "files": [
                        {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked
                    ]
                }
            )
        elif "/commit/" in self.path:
            for line in content.splitlines():
                record = json.loads(line)
                if record["key"] == "file":
                    value = record["value"]
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
            address = f"{self.server.address}/someone/digits/commit/{REVISION}"
            self._send({"success": True, "commitUrl": address, "commitOid": REVISION})
        else:
            self._send({}, status=404)

    def _answer(self, *, send_body=True):
        resolve = re.fullmatch(r"/someone/digits/resolve/[^/]+/(.+)", self.path.partition("?")[0])
        if resolve and resolve[1] in self.server.files:
            self.server.fetched.add(resolve[1])
            self._send(self.server.files[resolve[1]], send_body=send_body)
        elif self.path.startswith("/api/models/someone/digits/tree/"):
            files = self.server.files.items()
            self._send(
                [
                    {"type": "file", "path": name, "size": len(c), "oid": hashlib.sha1(c).hexdigest()}  # noqa: S324
                    for name, c in files
                ]
            )
        elif self.path.startswith("/api/models/someone/digits"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self._send({"id": "someone/digits", "sha": REVISION, "siblings": siblings, "private": False})
        else:
            self._send({"error": "Repository not found"}, status=404)

    def _send(self, content, *, status=200, send_body=True):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.end_headers()
        if send_body:
            self.wfile.write(body)


@pytest.fixture
def stand_in():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.fetched = {}, set()
    server.address = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def python(stand_in, tmp_path):
    """Runs a program whose hub is the stand-in (its address is read when the library is imported)."""

    def call(program, *arguments):
        environment = os.environ | {
            "HF_ENDPOINT": stand_in.address,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": "hf_a_stand_in",
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_a_model_is_put_on_the_hub_and_comes_back_as_it_was(python, stand_in, finished):
    out = python(
        """
        import sys, metavib
        print(metavib.load(sys.argv[1]).push_to_hub("someone/digits"))
        """,
        finished.run,
    )
    assert REVISION in out
    model = finished.run / "model"
    assert stand_in.files == {
        name: (model / name).read_bytes() for name in ("config.json", "model.safetensors", "README.md")
    }
    stand_in.files |= {"train.py": b"print('never')", "model.pkl": b"never"}
    image = next(finished.folder.rglob("*.png"))
    out = python(
        """
        import dataclasses, json, sys, metavib
        predictor = metavib.Predictor.from_pretrained("someone/digits", mode="mean")
        print(json.dumps(dataclasses.asdict(predictor(sys.argv[1])[0])))
        """,
        image,
    )
    expected = metavib.load(finished.run, mode="mean")(image)[0]
    assert json.loads(out)["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
    assert stand_in.fetched == {"config.json", "model.safetensors", "README.md"}


def test_a_name_that_the_hub_does_not_know_is_one_line(python):
    out = python(
        """
        import metavib
        from metavib.core.errors import UserError
        for name in ("someone/nothing", "no/such/name at all"):
            try:
                metavib.Predictor.from_pretrained(name)
            except UserError as error:
                print(error)
        """
    )
    lines = out.splitlines()
    assert len(lines) == 2
    for line, name in zip(lines, ("someone/nothing", "no/such/name at all"), strict=True):
        assert line.startswith(f"there is no folder {name}, and it could not be fetched from the hub: ")


def test_a_folder_needs_no_hub(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    image = next(finished.folder.rglob("*.png"))
    predictor = metavib.Predictor.from_pretrained(finished.run / "model", coverage=0.5)
    assert predictor(image) == metavib.load(finished.run, coverage=0.5)(image)


def test_without_the_library_the_extra_is_named(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"metavib\[hub\]"):
        metavib.Predictor.from_pretrained("someone/digits")
    with pytest.raises(UserError, match=r"metavib\[hub\]"):
        metavib.load(finished.run).push_to_hub("someone/digits")


def test_what_the_hub_says_is_told_in_one_line(finished, monkeypatch):
    class Refuses:
        def __init__(self, token):
            assert token == "secret"  # noqa: S105

        def create_repo(self, repo, **options):
            raise ConnectionError("\n403 Forbidden\nlong story")

    monkeypatch.setattr("huggingface_hub.HfApi", Refuses)
    with pytest.raises(UserError, match=r"^x/y could not be put on the hub: 403 Forbidden$"):
        metavib.load(finished.run).push_to_hub("x/y", token="secret")  # noqa: S106


def test_a_saved_model_directory_is_the_one_it_came_from(finished, tmp_path):
    metavib.load(finished.run).save_pretrained(tmp_path / "copy")
    for name in hub.FILES:
        assert (tmp_path / "copy" / name).read_bytes() == (finished.run / "model" / name).read_bytes()
