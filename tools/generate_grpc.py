"""Make inference_pb2.py, the messages of gRPC, from inference.proto.

python -m tools.generate_grpc          write the files
python -m tools.generate_grpc --check  fail if a file is stale
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

SERVICE = Path(__file__).parent.parent / "service"
SOURCE = SERVICE / "warpcall_service" / "oip" / "grpc" / "inference.proto"


def generate(folder: Path) -> list[Path]:
    """Write the files below `folder`, and return their paths relative to it."""
    status = protoc.main(
        ["protoc", f"-I{SERVICE}", f"--python_out={folder}", f"--pyi_out={folder}", str(SOURCE)]
    )
    if status:
        raise SystemExit(status)
    stem = SOURCE.relative_to(SERVICE).with_suffix("")
    return [stem.with_name(f"{stem.name}_pb2{suffix}") for suffix in (".py", ".pyi")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args().check:
        generate(SERVICE)
        return
    with tempfile.TemporaryDirectory() as name:
        for path in generate(Path(name)):
            if (SERVICE / path).read_bytes() != (Path(name) / path).read_bytes():
                sys.exit(f"{path} is stale: run `make fmt`")


if __name__ == "__main__":
    main()
