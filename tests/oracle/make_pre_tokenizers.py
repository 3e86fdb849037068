"""Makes the ids of all pre-tokenizers: `python -m tests.oracle.make_pre_tokenizers`, in its environment."""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path

import gguf
import llama_cpp

from tests.oracle import pre_tokenizers, values


def main() -> None:
    """Write the value file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=values.DIRECTORY)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "vocabulary.gguf"
        found = {name: _ids(path, name) for name in pre_tokenizers.NAMES}
    packed = json.dumps(found, separators=(",", ":")).encode()
    (arguments.out / pre_tokenizers.FILE).write_bytes(gzip.compress(packed, compresslevel=9, mtime=0))


def _ids(path: Path, name: str) -> list[list[int]]:
    tokens, merges = pre_tokenizers.vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ids = [model.tokenize(text.encode(), add_bos=False, special=False) for text in pre_tokenizers.texts()]
    model.close()
    return ids


if __name__ == "__main__":
    main()
