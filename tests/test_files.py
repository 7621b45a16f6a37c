import json

import pytest

from expertp.files import write_atomically


def test_an_atomic_write_that_dies_keeps_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomically(path, b'{"old": true}')

    def die(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", die)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b'{"new": true}')
    assert json.loads(path.read_text()) == {"old": True}
