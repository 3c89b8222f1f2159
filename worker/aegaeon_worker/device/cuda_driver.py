"""The CUDA driver over ``cuda-bindings``, every return code checked.

The package is imported when a driver is made, so that this module can be used without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aegaeon_worker.device.errors import CudaError, DeviceUnavailable

if TYPE_CHECKING:
    from types import ModuleType


class BoundDriver:
    """The ``CudaDriver`` over ``cuda-bindings``, on the context that torch uses as well."""

    def __init__(self, index: int) -> None:
        """Open device ``index``; ``DeviceUnavailable`` says what is missing."""
        self._api: Any = _import_api()
        count = torch.cuda.device_count()
        if index >= count:
            raise DeviceUnavailable(
                f"there is no device cuda:{index}; this process sees {count} CUDA devices"
            )
        self.torch_device = torch.device("cuda", index)
        torch.empty(0, device=self.torch_device)  # torch initialises itself
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", index)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self.enter()
        self.name = str(torch.cuda.get_device_name(index))
        self.uuid = self._uuid(self._device)
        attributes = self._api.CUdevice_attribute
        if not self._attribute(attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED):
            raise DeviceUnavailable(f"{self.name} has no virtual memory management")
        self.read_only_pins = bool(
            self._attribute(attributes.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
        )
        self.shareable = bool(
            self._attribute(
                attributes.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            )
        )
        self._properties = self._chunk_properties()
        recommended = (
            self._api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        )
        self.granularity = int(
            self._call("cuMemGetAllocationGranularity", self._properties, recommended)
        )
        self._access = self._api.CUmemAccessDesc()
        self._access.location = self._properties.location
        self._access.flags = self._api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

    def enter(self) -> None:
        """See ``CudaDriver``."""
        # Both: torch keeps a device per thread of its own, which kernels are launched on.
        torch.cuda.set_device(self.torch_device)
        self._call("cuCtxSetCurrent", self._context)

    def free_nbytes(self) -> int:
        """See ``CudaDriver``."""
        free, _ = self._call("cuMemGetInfo")
        return int(free)

    def create_chunk(self, nbytes: int) -> int:
        """See ``CudaDriver``."""
        return int(self._call("cuMemCreate", nbytes, self._properties, 0))

    def release_chunk(self, chunk: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemRelease", chunk)

    def export_chunk(self, chunk: int) -> int:
        """See ``CudaDriver``."""
        return int(self._call("cuMemExportToShareableHandle", chunk, self._handle_type, 0))

    def import_chunk(self, fd: int) -> int:
        """See ``CudaDriver``."""
        return int(self._call("cuMemImportFromShareableHandle", fd, self._handle_type))

    def readable(self) -> frozenset[str]:
        """See ``CudaDriver``."""
        devices = [self._call("cuDeviceGet", i) for i in range(self._call("cuDeviceGetCount"))]
        return frozenset(self._uuid(device) for device in devices if self._reads(device))

    def reserve(self, nbytes: int) -> int:
        """See ``CudaDriver``."""
        return int(self._call("cuMemAddressReserve", nbytes, 0, 0, 0))

    def free(self, address: int, nbytes: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemAddressFree", address, nbytes)

    def map(self, address: int, nbytes: int, chunk: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemMap", address, nbytes, 0, chunk, 0)

    def allow(self, address: int, nbytes: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemSetAccess", address, nbytes, [self._access], 1)

    def unmap(self, address: int, nbytes: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemUnmap", address, nbytes)

    def stream(self) -> int:
        """See ``CudaDriver``."""
        flag = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(self._call("cuStreamCreate", int(flag)))

    def destroy_stream(self, stream: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuStreamDestroy", stream)

    def compute_stream(self) -> int:
        """See ``CudaDriver``."""
        return int(torch.cuda.current_stream(self.torch_device).cuda_stream)

    def synchronize(self, stream: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuStreamSynchronize", stream)

    def idle(self, stream: int) -> bool:
        """See ``CudaDriver``."""
        return self._happened("cuStreamQuery", stream)

    def event(self) -> int:
        """See ``CudaDriver``."""
        flag = self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return int(self._call("cuEventCreate", int(flag)))

    def timer(self) -> int:
        """See ``CudaDriver``."""
        return int(self._call("cuEventCreate", 0))

    def elapsed_ns(self, start: int, end: int) -> int:
        """See ``CudaDriver``."""
        for event in (start, end):
            self._call("cuEventSynchronize", event)
        return round(float(self._call("cuEventElapsedTime", start, end)) * 1e6)

    def destroy_event(self, event: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def done(self, event: int) -> bool:
        """See ``CudaDriver``."""
        return self._happened("cuEventQuery", event)

    def copy_in(self, address: int, host: int, nbytes: int, stream: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemcpyHtoDAsync", address, host, nbytes, stream)

    def copy_out(self, host: int, address: int, nbytes: int, stream: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemcpyDtoHAsync", host, address, nbytes, stream)

    def gather(self, pieces: torch.Tensor, stream: int) -> None:
        """See ``CudaDriver``."""
        # Triton is for those who have a GPU.
        from aegaeon_worker.kernels.gather_pieces import gather_pieces

        queue = torch.cuda.ExternalStream(stream, self.torch_device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(queue):
            gather_pieces(pieces, self.torch_device)

    def pin(self, host: int, nbytes: int, read_only: bool) -> None:
        """See ``CudaDriver``."""
        flags = self._api.CU_MEMHOSTREGISTER_PORTABLE
        if read_only:
            flags |= self._api.CU_MEMHOSTREGISTER_READ_ONLY
        self._call("cuMemHostRegister", host, nbytes, flags)

    def unpin(self, host: int) -> None:
        """See ``CudaDriver``."""
        self._call("cuMemHostUnregister", host)

    def close(self) -> None:
        """See ``CudaDriver``."""
        self._call("cuDevicePrimaryCtxRelease", self._device)

    def _chunk_properties(self) -> Any:
        properties = self._api.CUmemAllocationProp()
        properties.type = self._api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self._api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(self._device)
        if self.shareable:
            properties.requestedHandleTypes = self._handle_type
        return properties

    @property
    def _handle_type(self) -> Any:
        return self._api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _uuid(self, device: Any) -> str:
        return bytes(self._call("cuDeviceGetUuid", device).bytes).hex()

    def _reads(self, device: Any) -> bool:
        own = int(device) == int(self._device)
        return own or bool(self._call("cuDeviceCanAccessPeer", self._device, device))

    def _attribute(self, attribute: Any) -> int:
        return int(self._call("cuDeviceGetAttribute", attribute, self._device))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Results of a call without its code: none, one, or a tuple."""
        code, *results = getattr(self._api, name)(*arguments)
        if int(code) != 0:
            raise self._failure(name, code)
        return results[0] if len(results) == 1 else tuple(results)

    def _happened(self, query: str, handle: int) -> bool:
        """Ask something that never blocks."""
        (code,) = getattr(self._api, query)(handle)
        if code not in (self._api.CUresult.CUDA_SUCCESS, self._api.CUresult.CUDA_ERROR_NOT_READY):
            raise self._failure(query, code)
        return bool(code == self._api.CUresult.CUDA_SUCCESS)

    def _failure(self, name: str, code: Any) -> CudaError:
        return CudaError(name, int(code), getattr(code, "name", str(code)))


def _import_api() -> ModuleType:
    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            f"torch {torch.__version__} sees no CUDA device here; use --device cpu, or install a "
            "CUDA build of torch and the NVIDIA driver"
        )
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceUnavailable(
            "a CUDA device needs the package cuda-bindings: pip install 'aegaeon-grpc[gpu]'"
        ) from error
    module: ModuleType = driver
    return module
