"""Miniatures of published datasets, in the layouts in which they are handed round, and a server with them."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Files = dict[str, bytes]


def picture(number: int) -> bytes:
    """A small image; no two numbers have the same."""
    random = np.random.default_rng(number)
    out = io.BytesIO()
    Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def folders(domains: list[str], classes: list[str], each: int = 2, ending: str = "png") -> Files:
    """`domain/class/number.png`."""
    names = [f"{d}/{c}/{n}.{ending}" for d in domains for c in classes for n in range(each)]
    return {name: picture(number) for number, name in enumerate(names)}


def pacs_with_lists(top: str = "pacs/images") -> Files:
    """PACS as Dassl hands it round: images, and lists beside them."""
    from metavib.data.sources.pacs import CLASSES, DOMAINS

    images = folders(list(DOMAINS), list(CLASSES))
    files = {f"{top}/{name}": content for name, content in images.items()}
    for domain in DOMAINS:
        own = [name for name in images if name.startswith(f"{domain}/")]
        parts = {"train": own[::2], "crossval": own[1::2], "test": own}
        for part, names in parts.items():
            text = "".join(f"{name} 1\n" for name in names)
            files[f"pacs/splits/{domain}_{part}_kfold.txt"] = text.encode()
    return files


def pacs_kfold() -> Files:
    """PACS as DomainBed hands it round."""
    from metavib.data.sources.pacs import CLASSES, DOMAINS

    return {f"kfold/{name}": one for name, one in folders(list(DOMAINS), list(CLASSES)).items()}


def vlcs() -> Files:
    """VLCS as DomainBed hands it round."""
    from metavib.data.sources.vlcs import CLASSES, FOLDERS_WITH_PARTS

    return {f"VLCS/{name}": one for name, one in folders(list(FOLDERS_WITH_PARTS), list(CLASSES)).items()}


def office_home() -> Files:
    """Office-Home with 65 classes of one image."""
    from metavib.data.sources.office_home import FOLDERS_WITH_PARTS

    classes = [f"Thing_{number:02}" for number in range(65)]
    made = folders(list(FOLDERS_WITH_PARTS), classes, each=1)
    return {f"OfficeHomeDataset_10072016/{name}": one for name, one in made.items()}


def office_home_with_parts() -> Files:
    """Office-Home as Dassl hands it round."""
    places = [f"{d}/{part}" for d in ("art", "clipart", "product", "real_world") for part in ("train", "val")]
    made = folders(places, [f"Thing_{number:02}" for number in range(65)], each=1)
    return {f"office_home_dg/{name}": one for name, one in made.items()}


def digits_dg() -> Files:
    """Digits-DG."""
    from metavib.data.sources.digits_dg import DOMAINS

    places = [f"{domain}/{part}" for domain in DOMAINS for part in ("train", "val")]
    return {f"digits_dg/{name}": one for name, one in folders(places, list("0123456789")).items()}


def terra() -> tuple[Files, Files]:
    """Annotations and images; one image shows two animals, one is of a camera or class that plays no part."""
    from metavib.data.sources.terra_incognita import ANNOTATIONS, CAMERAS, CLASSES, IMAGES

    categories = [{"id": number, "name": name} for number, name in enumerate((*CLASSES, "car"))]
    records: dict[str, list[Any]] = {"images": [], "annotations": []}
    images: Files = {}

    def add(camera: str, *labels: int) -> None:
        number = len(records["images"])
        name = f"{number:04}.jpg"
        records["images"].append({"id": f"id-{number}", "file_name": name, "location": int(camera)})
        for label in labels:
            records["annotations"].append({"image_id": f"id-{number}", "category_id": label})
        images[f"{IMAGES}/{name}"] = picture(number)

    for camera in CAMERAS:
        for label in range(len(CLASSES)):
            add(camera, label, label)  # two animals of one kind
    add("38", 0, 1)
    add("38", len(CLASSES))
    add("7", 0)
    half = len(records["images"]) // 2
    annotations: Files = {}
    for name, chosen in (("train", slice(0, half)), ("cis_test", slice(half, None))):
        own = records["images"][chosen]
        known = {one["id"] for one in own}
        marks = [one for one in records["annotations"] if one["image_id"] in known]
        text = json.dumps({"images": own, "annotations": marks, "categories": categories})
        annotations[f"{ANNOTATIONS}/{name}_annotations.json"] = text.encode()
    return annotations, images


def domain_net() -> tuple[dict[str, Files], dict[str, str]]:
    """The archives by domain, and the lists by name. An image in no list plays no part."""
    from metavib.data.sources.domain_net import DOMAINS

    archives, lists = {}, {}
    for domain in DOMAINS:
        classes = [f"thing_{number:03}" for number in range(345)]
        names = [f"{domain}/{label}/{domain}_{n}.png" for label in classes for n in range(3)]
        archives[domain] = {name: b"image " + name.encode() for name in names}
        for part, number in (("train", 0), ("test", 1)):
            own = [f"{name} {place // 3}" for place, name in enumerate(names) if place % 3 == number]
            lists[f"{domain}_{part}.txt"] = "\n".join(own) + "\n"
    return archives, lists


def camelyon17() -> Files:
    """Five hospitals."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    files: Files = {}
    for number in range(40):
        center, tumor, split = number % 5, number // 5 % 2, int(number >= 30)
        lines.append(f"{number},{center:03},1,{number},7,{tumor},{center},{center},{split}")
        slide = f"patient_{center:03}_node_1"
        files[f"patches/{slide}/patch_{slide}_x_{number}_y_7.png"] = picture(number)
    return files | {"metadata.csv": "\n".join(lines).encode(), "RELEASE_v1.0.txt": b""}


def iwildcam() -> Files:
    """243 cameras that train, with 182 classes between them, and cameras to validate and test by."""
    lines, files = ["split,location_remapped,y,filename"], {}

    def add(split: str, camera: int, label: int) -> None:
        name = f"{len(lines):05}.jpg"
        lines.append(f"{split},{camera},{label},{name}")
        files[f"train/{name}"] = b"image " + name.encode()

    for camera in range(243):
        add("train", camera, camera % 182)
        add("id_val", camera, camera % 182)
        add("id_test", camera, camera % 182)
    for camera in range(243, 260):
        add("test", camera, camera % 5)
        add("val", camera + 50, camera % 5)
    add("test", 259, 181 + 1)  # of a class that no training image has
    names = ["y,category_id,name", *(f"{y},{y},animal {y}" for y in range(183))]
    files["metadata.csv"] = "\n".join(lines).encode()
    files["categories.csv"] = "\n".join(names).encode()
    return files


def zipped(files: Files) -> bytes:
    """A zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(files: Files, *more: tarfile.TarInfo) -> bytes:
    """A tar.gz file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member)
    return out.getvalue()


def write(files: Files, folder: Path) -> Path:
    """Put the files into a folder, as if they had been unpacked there."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


class Mirror:
    """A server with some files, which can be told to misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, Callable[[http.server.BaseHTTPRequestHandler], None]] = {}
        self.cut: dict[str, int] = {}  # after so many bytes the connection ends, once
        self.marks: dict[str, str] = {}  # ETags
        self.asked: list[tuple[str, str | None]] = []  # what was asked for, and which range of it
        self.address = ""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        """One file, or the part of it that is asked for."""
        path = handler.path.lstrip("/")
        wanted = handler.headers.get("Range")
        self.asked.append((path, wanted))
        if path in self.answers:
            return self.answers[path](handler)
        if path not in self.files:
            return handler.send_error(404)
        content, mark = self.files[path], self.marks.get(path)
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        known = handler.headers.get("If-Range")
        if first >= len(content) or (known is not None and known != mark):
            first = 0
        handler.send_response(206 if first else 200)
        handler.send_header("Content-Length", str(len(content) - first))
        handler.send_header("Content-Type", "application/octet-stream")
        if mark is not None:
            handler.send_header("ETag", mark)
        if first:
            handler.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        handler.end_headers()
        last = self.cut.pop(path, None)
        handler.wfile.write(content[first:last])
        handler.close_connection = True


@contextlib.contextmanager
def served() -> Iterator[Mirror]:
    """A mirror at an address of this machine."""
    mirror = Mirror()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):
                mirror.answer(self)

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    mirror.address = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
