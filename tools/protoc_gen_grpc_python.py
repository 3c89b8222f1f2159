"""A protoc plugin that makes `*_pb2_grpc.py`, with the code generator inside grpcio-tools.

That generator is linked into protoc there and is no program of its own, which `buf generate` needs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet


def generate(request: CodeGeneratorRequest) -> CodeGeneratorResponse:
    """Run protoc on the request's descriptors and collect what it wrote."""
    response = CodeGeneratorResponse(
        supported_features=CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder, "descriptors.binpb")
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        out = Path(folder, "out")
        out.mkdir()
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--descriptor_set_in={descriptors}"]
        subprocess.run(
            [*command, f"--grpc_python_out={out}", *request.file_to_generate], check=True
        )
        for path in sorted(out.rglob("*.py")):
            name = path.relative_to(out).as_posix()
            response.file.add(name=name, content=path.read_text())
    return response


if __name__ == "__main__":
    answer = generate(CodeGeneratorRequest.FromString(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(answer.SerializeToString())
