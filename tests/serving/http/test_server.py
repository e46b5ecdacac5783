"""The server over real sockets: answers, errors, and what a client can do to it."""

from __future__ import annotations

import socket
import time

import pytest
from attacks.image_bombs import BOMBS
from places import PATIENCE
from serving_fixtures import form

import metavib
from metavib.serving.http.limits import Limits
from metavib.serving.http.service import Options


def test_one_image_gets_what_the_predictor_says(running, predictors, image):
    reply = running.send(image())
    assert reply.status == 200
    (answer,) = reply.json["predictions"]
    assert reply.json["problems"] == []
    predictor = predictors["steady"]
    (expected,) = predictor.predict([predictor.decode(image(), "x")])
    assert answer["label"] == expected.label
    assert answer["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
    assert answer["entropy"] == pytest.approx(expected.entropy, abs=1e-6)
    assert answer["model_entropy"] == pytest.approx(expected.model_entropy, abs=1e-6)
    assert answer["unsure"] == expected.unsure
    assert answer["distances"] == pytest.approx(expected.distances, rel=1e-4)
    assert answer["classifiers"] is None
    assert (answer["image"], answer["name"]) == (0, "image 1")


def test_options_choose_the_mode_the_best_and_the_samples(running, predictors, image):
    mean = running.send(image(), query="?mode=mean&top=1&samples=true").json["predictions"][0]
    (expected,) = predictors["mean"].predict([predictors["mean"].decode(image(), "x")])
    assert mean["probabilities"] == pytest.approx({expected.label: expected.probability}, abs=1e-6)
    assert mean["classifiers"] == []
    sampled = running.send(image(), query="?mode=sampled&samples=true").json["predictions"][0]
    drawn = sampled["classifiers"]
    assert len(drawn) == 2  # as the model draws
    for name, probability in sampled["probabilities"].items():
        assert sum(one[name] for one in drawn) / len(drawn) == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize(
    "query", ["?top=0", "?top=x", "?top=-1", "?mode=other", "?samples=perhaps", "?tops=3"]
)
def test_wrong_options_are_named(running, image, query):
    reply = running.send(image(), query=query)
    assert reply.status == 422
    assert query[1:].partition("=")[0] in reply.json["error"]


def test_several_images_are_answered_in_their_order_and_the_bad_ones_are_named(running, image):
    parts = [(f"{seed}.png", image(seed=seed)) for seed in range(5)]
    parts[2] = ("/etc/../..\\evil\x1b.png", b"no image at all")
    reply = running.send(*form(*parts))
    assert reply.status == 200
    assert [answer["image"] for answer in reply.json["predictions"]] == [0, 1, 3, 4]
    assert [answer["name"] for answer in reply.json["predictions"]] == ["0.png", "1.png", "3.png", "4.png"]
    (problem,) = reply.json["problems"]
    assert (problem["image"], problem["name"], problem["status"]) == (2, "evil.png", 415)
    alone = running.send(parts[3][1]).json["predictions"][0]
    assert reply.json["predictions"][2]["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
def test_every_format_is_read_whatever_the_type_says(running, image, kind):
    assert running.send(image(kind=kind), "image/x-unknown").status == 200
    assert running.send(image(kind=kind), "application/octet-stream").status == 200


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", "image/png", 400),
        (b"hello", "image/png", 415),
        (b"hello", "text/plain", 415),
        (b"{}", "application/json", 415),
        (SVG, "image/svg+xml", 415),
        (SVG, "image/png", 415),
        (GIF, "image/gif", 415),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "image/png", 415),
        (b"x", "multipart/form-data", 400),
        (b"x", "multipart/form-data; boundary=" + "b" * 3000, 400),
        (b"--cut\r\n\r\nabc", "multipart/form-data; boundary=cut", 400),
        (b"--cut--\r\n", "multipart/form-data; boundary=cut", 400),
        (b"a=b", "application/x-www-form-urlencoded", 415),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_image_is_a_client_error_with_a_remedy(running, content, kind, status):
    if isinstance(kind, bytes):
        kind = kind.decode()
    reply = running.send(content, kind)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert set(reply.json) == {"error", "what_to_do"}
    assert len(reply.json["what_to_do"]) > 10


def test_truncated_images_are_refused_at_every_length(running, image):
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF"):
        whole = image(64, kind)
        for share in (0.02, 0.3, 0.6, 0.9):
            reply = running.send(whole[: int(share * len(whole))])
            assert reply.status in (415, 422), (kind, share)


def test_a_bomb_is_refused_by_its_header(running, start):
    import io
    import zlib

    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(file, "PNG")  # 900 million pixels in some kilobytes
    assert len(file.getvalue()) < 500_000
    reply = running.send(file.getvalue())
    assert reply.status == 413
    assert "pixels" in reply.json["error"]
    small = start(Limits(image_pixels=300))
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "PNG")
    reply = small.send(file.getvalue())
    assert reply.status == 413
    assert "20 x 20 pixels" in reply.json["error"]
    assert zlib.crc32(file.getvalue())  # the file itself was whole


@pytest.mark.filterwarnings("ignore")  # Pillow's about metadata; a server prints none
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("JPEG: scans", 413),
        ("JPEG: empty comments", 413),
        ("JPEG: arithmetic scans", 422),
        ("PNG: empty chunks", 413),
        ("PNG: one row", 413),
        ("PNG: 65,000 x 65,000", 413),
        ("PNG: inflated texts", 200),
        ("TIFF: strips", 413),
        ("TIFF: strips over one another", 422),
        ("BMP: ends of lines", 413),
    ],
)
def test_files_that_ask_for_too_much_get_the_documented_status(running, name, status):
    reply = running.send(BOMBS[name](0.1))
    assert reply.status == status
    if status != 200:
        assert set(reply.json) == {"error", "what_to_do"}
        assert "\n" not in reply.json["error"]


def test_large_images_are_answered_too(running, image):
    assert running.send(image(2100, "JPEG"), "image/jpeg").status == 200  # 4.4 million pixels


def test_bytes_and_numbers_are_limited_while_they_come(start, image):
    server = start(Limits(image_bytes=5000, request_bytes=20_000, images=3))
    assert server.send(image()).status == 200
    assert server.send(b"x" * 5001).status == 413
    assert server.send(*form(("a", image()), ("b", b"x" * 5001))).status == 413
    assert server.send(*form(*[("a", image())] * 3)).status == 200
    reply = server.send(*form(*[("a", image())] * 4))
    assert reply.status == 413
    assert "more than 3 images" in reply.json["error"]

    def endless():
        while True:
            yield b"x" * 1000

    chunked = server.raw(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
        + b"3e8\r\n"
        + b"x" * 1000
        + b"\r\n"
        + b"3e8\r\n"
        + b"x" * 1000
        + b"\r\n"
        + b"".join(b"3e8\r\n" + b"x" * 1000 + b"\r\n" for _ in range(10))
    )
    assert chunked.startswith(b"HTTP/1.1 413")
    assert server.service.budget.taken == 0


def test_a_body_that_is_too_long_by_its_own_word_is_refused_before_it_comes(start):
    server = start(Limits(image_bytes=5000, body_seconds=10 * PATIENCE))  # nobody waits for the body
    reply = server.raw(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 99999999\r\n\r\n"
    )
    assert reply.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in reply


def test_a_slow_body_gets_408_and_the_connection_ends(start):
    server = start(Limits(body_seconds=0.3))
    reply = server.raw(
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\nabc"
    )
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"what_to_do" in reply
    assert server.service.budget.taken == 0


def test_what_all_clients_hold_together_is_limited(start):
    server = start(Limits(waiting_bytes=50_000))
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 60000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as first:
        first.sendall(head + b"x" * 40_000)
        end = time.monotonic() + PATIENCE
        while server.service.budget.taken < 40_000:
            assert time.monotonic() < end
            time.sleep(0.01)
        reply = server.send(b"x" * 20_000)
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
    end = time.monotonic() + PATIENCE
    while server.service.budget.taken:  # it went away, and with it what it held
        assert time.monotonic() < end
        time.sleep(0.01)


def test_routes_that_are_not_there(running):
    assert running.ask("GET", "/nothing").status == 404
    assert running.ask("GET", "/../../etc/passwd").status == 404
    assert running.ask("GET", "/page/index.html").status == 404
    reply = running.ask("GET", "/predict")
    assert reply.status == 405
    assert set(reply.json) == {"error", "what_to_do"}
    assert running.ask("DELETE", "/model").status == 405


def test_health_readiness_and_facts(running, predictors):
    assert running.ask("GET", "/health").json == {"status": "ok"}
    assert running.ask("GET", "/ready").json == {"status": "ready"}
    facts = running.ask("GET", "/model").json
    assert facts["classes"] == ["cat", "dog"]
    assert facts["source_domains"] == ["art", "cartoon", "photo"]
    assert facts["unseen_domain"] == "sketch"
    assert facts["thresholds"] == {mode: own.threshold for mode, own in predictors.items()}
    assert facts["limits"]["images"] == 64
    assert facts["version"] == metavib.__version__
    running.service.ready = False
    try:
        assert running.ask("GET", "/ready").status == 503
        assert running.ask("GET", "/health").status == 200
    finally:
        running.service.ready = True


def test_the_description_names_every_route_answer_and_error(running):
    described = running.ask("GET", "/openapi.json").json
    assert set(described["paths"]) == {"/predict", "/model", "/health", "/ready", "/metrics"}
    responses = described["paths"]["/predict"]["post"]["responses"]
    assert {"200", "400", "401", "408", "413", "415", "422", "503"} <= set(responses)
    assert set(responses["200"]["content"]) == {"application/json", "application/x-npy"}
    shapes = described["components"]["schemas"]
    assert set(shapes["Problem"]["required"]) == {"error", "what_to_do"}
    assert {"label", "probability", "unsure", "distances"} <= set(shapes["Answer"]["properties"])
    body = described["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert set(body) == {"image/*", "multipart/form-data", "application/x-npy"}
    parameters = described["paths"]["/predict"]["post"]["parameters"]
    assert [one["name"] for one in parameters] == list(Options._fields)


def test_no_page_of_the_framework_that_loads_from_elsewhere(running):
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert running.ask("GET", path).status == 404


def test_metrics_count_requests_images_and_batches(start, image):
    server = start()
    server.send(image())
    server.send(b"hello")
    server.ask("GET", "/made/up/by/a/client")
    text = server.ask("GET", "/metrics").body.decode()
    assert 'metavib_requests_total{path="/predict",status="200"} 1.0' in text
    assert 'metavib_requests_total{path="/predict",status="415"} 1.0' in text
    assert 'metavib_requests_total{path="other",status="404"} 1.0' in text
    assert "made" not in text
    assert 'metavib_images_total{outcome="refused"} 1.0' in text
    assert "metavib_batch_images_count 1.0" in text
    assert "metavib_waiting_images 0.0" in text


def test_the_page_comes_with_a_policy_that_allows_only_itself(running):
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        reply = running.ask("GET", path)
        assert reply.status == 200
        assert reply.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "http" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert b"http://" not in reply.body
        assert b"https://" not in reply.body
        assert "access-control-allow-origin" not in reply.headers
