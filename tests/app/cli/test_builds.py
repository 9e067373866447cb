from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.builds import spec
from app.cli.errors import CliError


def test_both_forms_are_the_same_build(tmp_path: Path) -> None:
    file = tmp_path / "build.json"
    file.write_text('{"rope_theta": 10000, "engine": "torch-serving", "dtype": "bfloat16"}')
    assert spec(str(file)) == spec("torch-serving:rope_theta=10000,dtype=bfloat16")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not a JSON file"), ("[]", "is a JSON object"), ('{"dtype": "float32"}', "names its engine")],
)
def test_files_that_are_no_build(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "build.json"
    file.write_text(content)
    with pytest.raises(CliError, match=message) as caught:
        spec(str(file))
    assert caught.value.code == 2


def test_a_misspelt_key_is_told_with_the_right_one() -> None:
    with pytest.raises(CliError, match=r"kernel build torch:dtpye=float32: .*dtpye.*did you mean 'dtype'\?"):
        spec("torch:dtpye=float32")
