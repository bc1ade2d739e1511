"""Fits run with one BLAS thread and give the others back."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from etude.baselines.blas_threads import with_one_blas_thread


def count_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_inside_and_the_others_back_outside() -> None:
    @with_one_blas_thread
    def multiply(left: np.ndarray, *, right: np.ndarray) -> tuple[np.ndarray, set[int]]:
        return left @ right, count_threads()

    with threadpool_limits(limits=2, user_api="blas"):
        before = count_threads()
        product, inside = multiply(np.eye(3), right=np.ones((3, 2)))
        assert inside == {1} and count_threads() == before
    assert (product == 1).all()


def test_threads_come_back_after_an_error() -> None:
    @with_one_blas_thread
    def fail() -> None:
        raise ValueError("singular")

    with threadpool_limits(limits=2, user_api="blas"):
        before = count_threads()
        with pytest.raises(ValueError, match="singular"):
            fail()
        assert count_threads() == before
