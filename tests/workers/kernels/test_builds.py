import json

import pytest

from contracts.builds import InvalidBuild
from workers.kernels.builds import read_build


def test_builds_come_from_text_or_a_file(tmp_path):
    file = tmp_path / "build.json"
    file.write_text(json.dumps({"engine": "torch-serving", "dtype": "float32"}))
    assert (
        str(read_build(str(file)))
        == "torch-serving:dtype=float32"
        == str(read_build("torch-serving:dtype=float32"))
    )
    for content in ("{", "[]"):
        file.write_text(content)
        with pytest.raises(InvalidBuild):
            read_build(str(file))
