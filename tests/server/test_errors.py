"""The tree of errors: what is caught as what."""

from __future__ import annotations

from server.errors import BackendFailure, InternalError


def test_a_fault_of_the_server_is_not_taken_for_one_of_a_worker() -> None:
    error = InternalError("a fault")
    assert not isinstance(error, BackendFailure)
    assert (error.status, error.code) == (500, "internal_error")
    assert error.headers == {"x-should-retry": "false"}
