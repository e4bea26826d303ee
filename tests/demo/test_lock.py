"""The lock that a dead process left."""

import pytest

from tessera.demo.lock import PATIENCE, LockHeld, holding, leave_behind


def test_a_free_lock_is_held_and_given_up(tmp_path):
    lock = tmp_path / "a.lock"
    with holding(lock, "me"):
        assert lock.exists()
        with pytest.raises(LockHeld, match="held by me"), holding(lock, "other"):
            pass
    assert not lock.exists()


def test_a_lock_is_given_up_after_an_error(tmp_path):
    lock = tmp_path / "a.lock"
    with pytest.raises(ZeroDivisionError), holding(lock, "me"):
        raise ZeroDivisionError
    assert not lock.exists()


def test_a_lock_that_does_not_stir_is_broken_after_so_many_visits(tmp_path):
    lock = tmp_path / "a.lock"
    leave_behind(lock, "a dead process")
    for visit in range(1, PATIENCE + 1):
        with pytest.raises(LockHeld, match=f"visit {visit}"), holding(lock, "me"):
            pass
    with holding(lock, "me"):
        assert b'"me"' in lock.read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_stirs_is_never_broken(tmp_path):
    lock = tmp_path / "a.lock"
    for beat in range(3 * PATIENCE):
        lock.write_text(f'{{"holder":"alive","beat":{beat}}}')
        with pytest.raises(LockHeld, match="visit 1"), holding(lock, "me"):
            pass
