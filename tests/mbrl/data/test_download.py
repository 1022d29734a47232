"""Downloads, against a server on this machine: resume, mirrors, checksums, no network."""

import hashlib
import http.server
import socket
import threading
import unittest
from dataclasses import replace

import numpy as np
import pytest

import mbrl.data.download as downloads
from mbrl.data import load
from mbrl.data.cards import Checksum, find_card
from mbrl.data.download import download
from mbrl.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`; breaks off after `server.cut` bytes; ranges if `server.ranges`."""

    def do_GET(self):
        self.server.log.append((self.path, self.headers.get("Range")))
        content = self.server.files.get(self.path)
        if content is None:
            return self.send_error(404, "Not Found")
        start, asked = 0, self.headers.get("Range")
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        same = self.headers.get("If-Range") in (None, tag)
        if asked and self.server.ranges and same:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416, "Range Not Satisfiable")
            self.send_response(206)
            end, size = len(content) - 1, len(content)
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        stop = self.server.cut.pop(0) if self.server.cut else len(content)
        self.wfile.write(content[start : start + stop])
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LONGREACH_DATA", str(tmp_path / "data"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.log, running.cut, running.ranges = {"/f": CONTENT}, [], [], True
        running.url = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_file_with_progress_and_nothing_left_over(server, tmp_path):
    seen = []
    path = download([f"{server.url}/f"], tmp_path / "x" / "f", checksum=SHA,
                    progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert path.read_bytes() == CONTENT and files(path.parent) == ["f"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_broken_connection_is_resumed_within_one_call(server, tmp_path):
    server.cut = [100_000]
    path = download([f"{server.url}/f"], tmp_path / "f", checksum=SHA)
    assert path.read_bytes() == CONTENT
    assert server.log == [("/f", None), ("/f", "bytes=100000-")]


def test_a_killed_download_is_resumed_by_the_next_call(server, tmp_path):
    server.cut = [50_000, 0]
    with pytest.raises(DataError, match="after 50000 of 300000 bytes"):
        download([f"{server.url}/f"], tmp_path / "f", checksum=SHA)
    assert not (tmp_path / "f").exists()
    download([f"{server.url}/f"], tmp_path / "f", checksum=SHA)
    assert server.log[-1] == ("/f", "bytes=50000-")
    assert files(tmp_path) == ["f"]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges, server.cut = False, [100_000]
    assert download([f"{server.url}/f"], tmp_path / "f").read_bytes() == CONTENT


def test_a_file_that_changed_is_not_glued_to_its_old_half(server, tmp_path):
    server.cut = [100_000, 0]
    with pytest.raises(DataError):
        download([f"{server.url}/f"], tmp_path / "f")
    server.files["/f"] = CONTENT[::-1]
    assert download([f"{server.url}/f"], tmp_path / "f").read_bytes() == CONTENT[::-1]


def test_without_a_checksum_halves_of_two_mirrors_are_not_glued(server, tmp_path):
    server.files["/g"] = CONTENT[::-1]
    server.cut = [100_000, 0]
    urls = [f"{server.url}/f", f"{server.url}/g"]
    assert download(urls, tmp_path / "f").read_bytes() == CONTENT[::-1]


def test_mirrors_are_tried_in_order(server, tmp_path):
    urls = ["http://127.0.0.1:9/f", f"{server.url}/missing", f"{server.url}/f"]
    assert download(urls, tmp_path / "f", checksum=SHA).read_bytes() == CONTENT


def test_a_wrong_checksum_goes_to_the_next_mirror_and_then_fails(server, tmp_path):
    server.files["/bad"] = b"<html>not here</html>"
    urls = [f"{server.url}/bad", f"{server.url}/f"]
    assert download(urls, tmp_path / "f", checksum=SHA).read_bytes() == CONTENT
    with pytest.raises(DataError, match=r"sha256 is .*, published is"):
        download(urls[:1], tmp_path / "g", checksum=SHA)
    assert files(tmp_path) == ["f"]


def test_a_damaged_half_is_thrown_away_and_fetched_anew(server, tmp_path):
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    assert download([f"{server.url}/f"], tmp_path / "f", checksum=SHA).read_bytes() == CONTENT
    (tmp_path / "g.part").write_bytes(CONTENT)  # complete, only the rename was missing
    assert download([f"{server.url}/f"], tmp_path / "g", checksum=SHA).read_bytes() == CONTENT


def test_without_a_network_the_message_is_a_manual(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DataError) as caught:
        download(["http://example.org/a/f"], tmp_path / "deep" / "f")
    text = str(caught.value)
    assert "Name or service not known" in text
    assert "curl -L -o f http://example.org/a/f" in text
    assert str(tmp_path / "deep" / "f") in text
    with pytest.raises(DataError, match="no address"):
        download([], tmp_path / "f")


def test_load_fetches_a_dataset_that_is_not_here(server, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    chain = rng.normal(size=(6, 52)).astype(np.float32)
    last = np.arange(5) == 4
    np.savez(
        tmp_path / "f.npz", obs=chain[:-1], next_obs=chain[1:], action=np.zeros((5, 1)),
        reward=np.ones((5, 1)), done=last, truncated=last,
    )  # fmt: skip
    content = (tmp_path / "f.npz").read_bytes()
    server.files["/mirror/Pipeline/Pipeline-train.npz"] = content
    card = find_card("neorl2")
    sums = {"Pipeline-train.npz": Checksum("md5", hashlib.md5(content).hexdigest())}
    local = replace(card, sources=(server.url, f"{server.url}/mirror"), checksums=sums)
    monkeypatch.setattr("mbrl.data.loading.find_tier", lambda name: (local, local.tier("Pipeline")))
    assert len(load("neorl2/Pipeline")) == 5
    assert len(server.log) == 2
    assert len(load("neorl2/Pipeline")) == 5 and len(server.log) == 2  # now from the disk


def test_a_part_that_is_a_link_is_not_written_through(server, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / "f.part").symlink_to(other)
    with pytest.raises(DataError, match="is a link"):
        download([f"{server.url}/f"], tmp_path / "f", checksum=SHA)
    assert other.read_bytes() == b"precious"


def test_a_file_beyond_the_bound_is_not_fetched(server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "LARGEST", 10)
    with pytest.raises(DataError, match="more than 10 are not fetched"):
        download([f"{server.url}/f"], tmp_path / "f", checksum=SHA)
    assert not (tmp_path / "f").exists()


def test_safe_addresses_come_first(tmp_path, monkeypatch):
    asked = []

    def refuse(request, **options):
        asked.append(request.full_url)
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(DataError, match="no network"):
        download(["http://a/f", "https://b/f", "http://c/f"], tmp_path / "f")
    assert asked == ["https://b/f", "http://a/f", "http://c/f"]


def test_the_range_of_an_answer_is_checked():
    downloads._require_range("bytes 5-9/10", 5)
    for text in (None, "bytes 0-9/10", "bytes */10", "5-9"):
        with pytest.raises(downloads._Changed, match="from 5 on"):
            downloads._require_range(text, 5)


def test_a_mirror_serves_only_files_whose_checksum_is_published():
    card = find_card("d4rl")
    tier = card.tier("hopper-medium-v2")
    assert tier.file is not None
    urls = card.addresses(tier, tier.file)
    assert urls[0].startswith("http://rail") and urls[1].endswith("/main/hopper_medium-v2.hdf5")
    unchecked = card.tier("hopper-medium-v1")
    assert unchecked.file is not None
    assert len(card.addresses(unchecked, unchecked.file)) == 1
    neorl2 = find_card("neorl2")
    named = neorl2.addresses(neorl2.tier("DMSD"), "DMSD/DMSD-val.npz")
    assert named[1].endswith("/DMSD/DMSD-high-20000-val.npz")


def test_what_is_fetched_and_what_failed_is_logged(server, tmp_path):
    server.files["/second"] = CONTENT
    with unittest.TestCase().assertLogs("mbrl", "INFO") as seen:
        download([f"{server.url}/first", f"{server.url}/second"], tmp_path / "f", checksum=SHA)
    levels = [(r.levelname, r.getMessage().split(" ")[0]) for r in seen.records]
    assert levels == [
        ("INFO", "fetching"),
        ("WARNING", f"{server.url}/first:"),
        ("INFO", "fetching"),
    ]
    assert "HTTP 404" in seen.output[1]
