"""The tree of errors: what is caught as what, and what clients may see."""

from __future__ import annotations

import pytest

from server.errors import BackendFailure, InternalError, LoadFailed, NotFound, without_folders


def test_a_fault_of_the_server_is_not_taken_for_one_of_a_worker() -> None:
    error = InternalError("a fault")
    assert not isinstance(error, BackendFailure)
    assert (error.status, error.code) == (500, "internal_error")
    assert error.headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/a/file.rkllm is damaged", "file.rkllm is damaged"),
        ("found: /a/b/x.so: too old; /c/y.so: too new", "found: x.so: too old; y.so: too new"),
        ('File "/usr/lib/python3/x.py", line 1', 'File "x.py", line 1'),
        ("the folder (/srv/models/a/)", "the folder (a/)"),
        ("at file=/srv/a.json,/srv/b.json", "at file=a.json,b.json"),
        ("https://example.org/a/b and a/b/c, 3/4", "https://example.org/a/b and a/b/c, 3/4"),
        ("/dev/dri/renderD129 is not there", "/dev/dri/renderD129 is not there"),
        ("see /v1/models/a", "see /v1/models/a"),
        ("/", "/"),
        ("/file", "/file"),
    ],
)
def test_of_the_servers_files_clients_see_the_names(text: str, shown: str) -> None:
    assert without_folders(text) == shown
    assert LoadFailed(text).body()["error"]["message"] == shown
    assert LoadFailed(text).message == text


def test_a_path_of_the_request_is_shown_as_it_is() -> None:
    assert NotFound("there is no /a/b here").body()["error"]["message"] == "there is no /a/b here"
