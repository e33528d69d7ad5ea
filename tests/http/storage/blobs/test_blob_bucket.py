"""A bucket that is away, read-only or somebody else's: what the operator and clients are told."""

import asyncio
import json
import logging
import sys

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.blobs.blob_bucket import OWNER, PROBE, SETTLING, BucketBlobs, describe, open_bucket
from palladio.http.storage.records.disk_errors import is_of_disk
from palladio.http.storage.records.object_lists import new_id
from palladio.http.wire.errors import HttpError
from palladio.runtime.interface.errors import ConfigError
from tests.docs.doc_blocks import blocks
from tests.http.storage.blobs.memory_bucket import MemoryBucket
from tests.http.storage.blobs.pieces import in_pieces, one_piece, read_all, scan

NAME = new_id("backend_input_file-")
DENIED = (
    "The operation lacked the necessary privileges to complete for path x: Error performing PUT http://h/b/x in 1ms - "
    'Server returned non-2xx status code: 403 Forbidden: <?xml version="1.0" encoding="UTF-8"?>\n'
    "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)
SKEWED = (
    "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is "
    "too large.</Message></Error>"
)
NO_BUCKET = "x not found: <Error><Code>NoSuchBucket</Code><Message>The bucket is not there</Message></Error>"
AWAY = (
    "Error performing GET http://u:pw@h/b in 1ms, after 3 retries - HTTP error: error sending request\n\n"
    'Debug source: Os { code: 111, message: "Connection refused" }'
)


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        ("get", UnauthenticatedError("who: <Error><Code>InvalidAccessKeyId</Code></Error>"), "be read: Invalid"),
        ("get", GenericError(AWAY), "error sending request (Connection refused); check AWS_ENDPOINT_URL"),
        ("put", PermissionDeniedError(DENIED), "be written: AccessDenied: Access Denied; check the credentials"),
        ("put", FileNotFoundError(NO_BUCKET), "NoSuchBucket: The bucket is not there; make the bucket, or correct"),
        (
            "get",
            PermissionDeniedError(SKEWED),
            "RequestTimeTooSkewed: The difference between the request time and the "
            "current time is too large.; set this host's clock",
        ),
        ("delete", PermissionDeniedError(DENIED), "have objects deleted: AccessDenied"),
        ("list", PermissionDeniedError(DENIED), "be listed: AccessDenied"),
    ],
)
async def test_a_bucket_that_cannot_be_used_is_told_at_start(call: str, error: Exception, told: str) -> None:
    blobs = MemoryBucket()
    blobs.flaky.failing[call] = error
    with pytest.raises(ConfigError, match=r"^--blob-store s3://bucket/prefix cannot ") as caught:
        await blobs.check("database")
    message = str(caught.value)
    assert told in message
    assert "\n" not in message
    assert "pw" not in message


@pytest.mark.parametrize("left", [PermissionDeniedError(DENIED), None])
async def test_a_check_leaves_nothing_behind_and_removes_what_an_interrupted_one_left(left: Exception | None) -> None:
    blobs = MemoryBucket()
    if left is not None:  # as after a kill between its two requests
        blobs.flaky.failing["delete"] = left
        with pytest.raises(ConfigError):
            await blobs.check("database")
        assert [one["path"] for some in obstore.list(blobs.memory) for one in some] == [PROBE, OWNER]
        blobs.flaky.failing.clear()
    await blobs.check("database")
    assert [one["path"] for some in obstore.list(blobs.memory) for one in some] == [OWNER]
    blobs.flaky.failing["delete"] = FileNotFoundError("another server was faster")
    await blobs.check("database")


def test_the_rule_on_the_page_removes_parts_of_no_upload_that_still_counts() -> None:
    found = [block for block in blocks() if "AbortIncompleteMultipartUpload" in block.text and block.language == "json"]
    amazon, google = (json.loads(block.text) for block in found)
    (rule,) = amazon["Rules"]
    assert (rule["Status"], rule["Filter"]) == ("Enabled", {"Prefix": "PREFIX/"})
    (other,) = google["lifecycle"]["rule"]
    days = rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
    assert other["condition"] == {"age": days, "matchesPrefix": ["PREFIX/"]}
    assert days * 24 * 3600 > SETTLING


async def test_a_bucket_belongs_to_one_database() -> None:
    blobs = MemoryBucket()
    await blobs.check("database")
    await blobs.check("database")
    assert bytes(obstore.get(blobs.memory, OWNER).bytes()) == b"database"
    with pytest.raises(ConfigError, match="holds the files of another database: give each database a prefix"):
        await blobs.check("another")
    assert [one["path"] for some in obstore.list(blobs.memory) for one in some] == [OWNER]


async def test_while_a_bucket_is_away_calls_are_a_503_and_deletions_wait(caplog: pytest.LogCaptureFixture) -> None:
    blobs = MemoryBucket()
    await blobs.put(NAME, one_piece(b"x"))
    blobs.flaky.fail_all()
    for call in (
        blobs.put(NAME, one_piece(b"x")),
        blobs.put(NAME, in_pieces([b"x" * 900] * 5)),
        read_all(blobs, NAME),
        scan(blobs),
    ):
        with pytest.raises(HttpError) as caught:
            await call
        assert (caught.value.body.status, caught.value.body.code) == (503, "blob_store_unavailable")
        assert is_of_disk(caught.value)
    caplog.clear()
    await blobs.delete([NAME])
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "HTTP error: gone" in caplog.text
    assert "pw" not in caplog.text
    blobs.flaky.failing = {}
    assert await read_all(blobs, NAME) == b"x"


@pytest.mark.parametrize("size", [500, 2500])
async def test_an_upload_that_is_cancelled_at_its_end_leaves_nothing(size: int) -> None:
    blobs = MemoryBucket()
    blobs.flaky.go_on.clear()
    upload = asyncio.create_task(blobs.put(NAME, one_piece(b"x" * size)))
    await asyncio.to_thread(blobs.flaky.reached.wait)
    upload.cancel()
    await asyncio.sleep(0)
    blobs.flaky.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await scan(blobs) == {}


async def test_a_bucket_that_was_deleted_is_no_file_that_was() -> None:
    blobs = MemoryBucket()
    with pytest.raises(FileNotFoundError):
        await read_all(blobs, NAME)
    blobs.flaky.failing["list"] = GenericError(NO_BUCKET)
    with pytest.raises(HttpError):
        await read_all(blobs, NAME)
    blobs.flaky.failing = {"put": FileNotFoundError(NO_BUCKET)}
    with pytest.raises(HttpError):
        await blobs.put(NAME, one_piece(b"x"))


def test_parts_are_as_large_as_the_largest_file_needs() -> None:
    parts = {most: BucketBlobs(None, obstore, "s3://b", most)._part for most in (1, 2**29, 2**40)}
    assert parts[1] == parts[2**29] == 5 * 2**20
    assert all(part * 10_000 > most for most, part in parts.items())


@pytest.mark.parametrize(
    "url", ["bucket", "s3://", "s3://KEY:SECRET@bucket/x", "s3://b/x?key=SECRET", "http://SECRET/x", "s3://b//x", ""]
)
def test_what_is_no_bucket_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="--blob-store must be s3://BUCKET/PREFIX") as caught:
        HttpConfig(blob_store=url)
    assert "SECRET" not in str(caught.value)


def test_the_library_is_asked_for_by_the_name_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[object-store\]'"):
        open_bucket("s3://bucket/prefix", 1000)


def test_secrets_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(ConfigError, match="Missing AccessKeyId; check the credentials in the env") as caught:
        open_bucket("s3://bucket/prefix", 1000)
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    blobs = open_bucket("s3://bucket/prefix", 1000)
    assert "hunter2" not in repr(vars(blobs))
    assert describe(GenericError("")) == "GenericError"
