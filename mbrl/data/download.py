"""Fetching a file: resume, mirrors in order, checksum, and a rename at the end, so that a file
that is there is a whole file. Without a network the error says what to do by hand."""

import hashlib
import http.client
import json
import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from mbrl.data.cards import Checksum
from mbrl.errors import DataError, MissingDataError

log = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known
BLOCK = 1 << 20
LARGEST = 64 << 30  # bytes of one file, against a server that never ends
ATTEMPTS = 3  # a mile-long file on a weak line breaks off now and then; each attempt resumes


class _Changed(Exception):
    """The bytes of an earlier attempt do not belong to this file; start afresh."""


def download(
    urls: Sequence[str],
    target: Path,
    *,
    checksum: Checksum | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Fetch `target` from the first of `urls` that works; `DataError` with the manual way if none
    does. A partial file is kept beside the target and continued by the next call."""
    if not urls:
        raise MissingDataError(f"no address is known for {target.name}; put the file at {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    for file in (part, _memo(part)):
        if file.is_symlink():
            raise DataError(f"{file} is a link to a file that would be overwritten; remove it")
    reasons = []
    for url in sorted(urls, key=lambda url: not url.startswith("https:")):
        log.info("fetching %s to %s", url, target)
        for _ in range(ATTEMPTS):
            before = part.stat().st_size if part.exists() else 0
            try:
                _fetch(url, part, checksum, progress, timeout)
                os.replace(part, target)
                _memo(part).unlink(missing_ok=True)
                return target
            except _Changed as problem:
                _forget(part)
                reason, again = str(problem), before > 0
            except urllib.error.HTTPError as problem:
                reason, again = f"HTTP {problem.code} {problem.reason}", False
            except (OSError, http.client.HTTPException, ValueError) as problem:
                gained = part.exists() and part.stat().st_size > before
                reason, again = str(getattr(problem, "reason", problem)), gained
            if not again:
                break
        log.warning("%s: %s", url, reason)
        reasons.append(f"    {url}: {reason}")
    raise MissingDataError(
        f"{target.name} could not be fetched:\n" + "\n".join(reasons) + "\nWithout a network, "
        "fetch it on another machine and copy it here:\n"
        f"    curl -L -o {target.name} {urls[0]}\n    and place it at {target}"
    )


def _fetch(
    url: str, part: Path, checksum: Checksum | None, progress: Progress | None, timeout: float
) -> None:
    """One attempt at one address, continuing `part` where that is safe."""
    memo = _read_memo(part)
    if part.exists() and checksum is None and memo.get("url") != url:
        _forget(part)  # only a checksum could show that two mirrors hold the same bytes
    offset = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "longreach"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
        if memo.get("url") == url and memo.get("etag"):
            request.add_header("If-Range", str(memo["etag"]))
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as problem:
        if problem.code == 416 and offset:  # already complete, or longer than the file now is
            if checksum is not None and _digest(part, checksum.kind) == checksum.value:
                return
            raise _Changed("the partial file does not fit the one offered now") from problem
        raise
    with response:
        if offset and response.status != 206:
            offset = 0
        if response.status == 206:
            _require_range(response.headers.get("Content-Range"), offset)
        length = response.headers.get("Content-Length")
        total = offset + int(length) if length else None
        if total is not None and total > LARGEST:
            raise OSError(f"the file would have {total} bytes, more than {LARGEST} are not fetched")
        _memo(part).write_text(json.dumps({"url": url, "etag": response.headers.get("ETag")}))
        digest = hashlib.new(checksum.kind) if checksum else None
        if digest and offset:
            _feed(part, digest)
        done = offset
        with part.open("ab" if offset else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                done += len(block)
                if done > min(LARGEST, total or LARGEST):
                    raise _Changed(f"more than the announced {total or LARGEST} bytes came")
                if digest:
                    digest.update(block)
                if progress:
                    progress(done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes")
    if digest and checksum and digest.hexdigest() != checksum.value:
        raise _Changed(
            f"{checksum.kind} is {digest.hexdigest()}, published is {checksum.value}: not the "
            "published file"
        )


def _require_range(text: str | None, offset: int) -> None:
    """Raise `_Changed` unless the answer begins where the partial file ends."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", text or "")
    if span is None or int(span[1]) != offset:
        raise _Changed(f"asked for the bytes from {offset} on, the answer is of {text!r}")


def _memo(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_memo(part: Path) -> dict[str, str | None]:
    try:
        values = json.loads(_memo(part).read_text())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _memo(part).unlink(missing_ok=True)


def _feed(path: Path, digest: "hashlib._Hash") -> None:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)


def _digest(path: Path, kind: str) -> str:
    digest = hashlib.new(kind)
    _feed(path, digest)
    return digest.hexdigest()
